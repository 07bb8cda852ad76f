"""Public names that are imported when somebody asks for them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` for a package whose names live in the given modules."""
    where = {name: f"{package}.{module}" for module, names in homes.items() for name in names}

    class Package(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            # Importing a module sets it on its package, where a public name of the same spelling must stay that.
            if not (isinstance(value, ModuleType) and name in where):
                super().__setattr__(name, value)

    sys.modules[package].__class__ = Package

    def resolve(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(where[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve, lambda: sorted(where), sorted(where)
