"""Commands whose modules are imported when they are run, so that help and completion are quick."""

import importlib
from typing import Any, Self

import typer
from typer.core import TyperCommand, TyperGroup


class LazyCommand(TyperCommand):
    """Stands for a command in lists of commands; becomes the command when it is called."""

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
    """A group of which most commands stand elsewhere: what each is called, where it is, what its help begins with."""

    lazy_commands: tuple[tuple[str, str, str], ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            **{name: LazyCommand(name, home, help) for name, home, help in self.lazy_commands},
            **self.commands,
        }

    def load_all(self) -> Self:
        """With the commands themselves in place of those that stand for them, for who looks at all of them."""
        self.commands = {
            name: one.load() if isinstance(one, LazyCommand) else one for name, one in self.commands.items()
        }
        return self
