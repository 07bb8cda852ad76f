"""Commands that are imported when they run, so that help and completion are fast."""

import importlib
from typing import Any, Self

import typer
from typer.core import TyperCommand, TyperGroup


class LazyCommand(TyperCommand):
    """A placeholder in the list of commands; loads the command when it is invoked."""

    def __init__(self, name: str, import_path: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self.import_path = import_path

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> Any:
        module, _, attribute = self.import_path.partition(":")
        named = getattr(importlib.import_module(module), attribute)
        if isinstance(named, typer.Typer):
            return typer.main.get_command(named)
        single = typer.Typer(add_completion=False)
        single.command(self.name)(named)
        return typer.main.get_command(single)


class LazyGroup(TyperGroup):
    """A group of lazy commands, given as ``(name, "module:attribute", help)``."""

    lazy_commands: tuple[tuple[str, str, str], ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            **{name: LazyCommand(name, path, help) for name, path, help in self.lazy_commands},
            **self.commands,
        }

    def load_all(self) -> Self:
        """Replace every placeholder by its command, for code that inspects all commands."""
        self.commands = {
            name: one.load() if isinstance(one, LazyCommand) else one for name, one in self.commands.items()
        }
        return self
