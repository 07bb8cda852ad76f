"""Public names that are imported when somebody asks for them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


class NamedPackage(ModuleType):
    """A package in which a public name goes before the module of the same name.

    Importing such a module makes it an attribute of its package, and would hide the name from then on.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        hides = isinstance(value, ModuleType) and name in self.__dict__.get("__all__", ())
        super().__setattr__(name, getattr(value, name) if hides else value)


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` for a package whose names live in the given modules."""
    if any(module in names for module, names in homes.items()):
        sys.modules[package].__class__ = NamedPackage
    where = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    def resolve(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve, lambda: sorted(where), sorted(where)
