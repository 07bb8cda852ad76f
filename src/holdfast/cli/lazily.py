"""Commands whose modules are imported when they are run, so that help and completion are quick."""

import importlib
from typing import Any, Self

import typer
from typer.core import TyperCommand, TyperGroup


class Later(TyperCommand):
    """Stands for a command in lists of commands; becomes the command when it is called."""

    def __init__(self, name: str, home: str, help: str) -> None:
        super().__init__(name=name, help=help)
        self.home = home

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self.found().make_context(info_name, args, parent, **extra)

    def found(self) -> Any:
        module, _, attribute = self.home.partition(":")
        named = getattr(importlib.import_module(module), attribute)
        if isinstance(named, typer.Typer):
            return typer.main.get_command(named)
        single = typer.Typer(add_completion=False)
        single.command(self.name)(named)
        return typer.main.get_command(single)


class Commands(TyperGroup):
    """A group of which most commands stand elsewhere: what each is called, where it is, what its help begins with."""

    elsewhere: tuple[tuple[str, str, str], ...] = ()

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            **{name: Later(name, home, help) for name, home, help in self.elsewhere},
            **self.commands,
        }

    def import_all(self) -> Self:
        """With the commands themselves in place of those that stand for them, for who looks at all of them."""
        self.commands = {name: one.found() if isinstance(one, Later) else one for name, one in self.commands.items()}
        return self
