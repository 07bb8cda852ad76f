"""Import the public names of a package on first use."""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


class LazyPackage(ModuleType):
    """A package whose public names take precedence over submodules of the same name.

    Importing a submodule sets it as an attribute of its package, which would hide the public name.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        hides = isinstance(value, ModuleType) and name in self.__dict__.get("__all__", ()) and hasattr(value, name)
        super().__setattr__(name, getattr(value, name) if hides else value)


def attach_stub(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package, read from its ``__init__.pyi``.

    The stub is the only list of public names: type checkers read it, and so does this function. Each line has the
    form ``from module import Name as Name``.
    """
    module = sys.modules[package]
    module.__class__ = LazyPackage
    with open(f"{module.__file__}i", encoding="utf-8") as stub:
        words = [line.split() for line in stub if line.startswith("from ")]
    modules = {name: path for _, path, _, name, _, _ in words}

    def resolve(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(module, name, value)
        return value

    return resolve, lambda: sorted(modules), sorted(modules)
