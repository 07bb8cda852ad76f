"""Import the public names of a package on first use, and modules under the paths that openai-agents has for them."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Resolver = tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]


class LazyPackage(ModuleType):
    """A package whose public names take precedence over submodules of the same name.

    Importing a submodule sets it as an attribute of its package, which would hide the public name.
    """

    @property
    def __all__(self) -> list[str]:
        """The public names, without those whose optional dependencies are not installed."""
        return [name for name in self.__dict__.get("__all__", ()) if hasattr(self, name)]

    def __setattr__(self, name: str, value: Any) -> None:
        hides = isinstance(value, ModuleType) and name in self.__dict__.get("__all__", ()) and hasattr(value, name)
        super().__setattr__(name, getattr(value, name) if hides else value)


def attach_stub(package: str) -> Resolver:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package, read from its ``__init__.pyi``.

    The stub is the only list of public names: type checkers read it, and so does this function. Each line has the
    form ``from module import Name as Name``.
    """
    with open(f"{sys.modules[package].__file__}i", encoding="utf-8") as stub:
        words = [line.split() for line in stub if line.startswith("from ")]
    return _attach_names(package, {name: (path, name) for _, path, _, name, _, _ in words})


def _attach_names(package: str, origins: Mapping[str, tuple[str, str]]) -> Resolver:
    module = sys.modules[package]
    module.__class__ = LazyPackage

    def resolve(name: str) -> Any:
        if name in origins:
            path, original = origins[name]
            try:
                value = getattr(import_module(path), original)
            except ImportError as error:
                if not hasattr(module, "__path__") or str(error.name).startswith("standfast"):
                    raise
                reason = explain_missing(f"{package}.{name}", error)
                raise AttributeError(f"{package}.{name}: {reason}", name=name) from reason
            setattr(module, name, value)
            return value
        submodule = f"{package}.{name}"
        try:
            if not name.startswith("_") and hasattr(module, "__path__"):
                return import_module(submodule)
        except ModuleNotFoundError as error:
            if error.name != submodule:
                raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return resolve, lambda: sorted(origins), sorted(origins)


def explain_missing(name: str, error: ImportError) -> ImportError:
    """Return an error with the extra that a public name needs, or ``error`` itself if no extra has the module."""
    from importlib.metadata import PackageNotFoundError, requires

    from standfast.base.errors import MissingExtra

    if isinstance(error, MissingExtra):
        return error
    modules: dict[str, list[str]] = {}  # by extra
    try:
        for requirement, _, extra in (each.partition("; extra ==") for each in requires("standfast") or ()):
            modules.setdefault(extra.strip(" '\""), []).append(re.split(r"[^\w.-]", requirement)[0])
    except PackageNotFoundError:  # the source without its distribution
        return error
    package = name.split(".")[1]
    extras = [package] if package in modules else [extra for extra in modules if error.name in modules[extra]]
    smallest = min(extras, key=lambda extra: len(modules[extra]), default="dev")
    return error if smallest == "dev" else MissingExtra(smallest, name)


class ModulePathFinder:
    """Finds the modules in ``module_paths.toml``: names of standfast under the module paths of openai-agents.

    A program moves by replacing the first word of its imports. Modules that exist as files are found before. Importing
    a public name whose optional dependency is not installed raises the error that says what to install.
    """

    paths: dict[str, dict[str, list[str]]] | None = None

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        package, _, tail = name.partition(".")
        parent, _, last = name.rpartition(".")
        if isinstance(known := sys.modules.get(parent), LazyPackage) and last in known.__dict__.get("__all__", ()):
            try:
                getattr(known, last)
            except AttributeError as error:
                raise error.__cause__ or error from None
        if package != "standfast" or tail not in cls.read_paths():
            return None
        is_package = any(other.startswith(f"{tail}.") for other in cls.read_paths())
        return ModuleSpec(name, ModulePathLoader(cls.read_paths()[tail]), is_package=is_package)  # type: ignore[arg-type]

    @classmethod
    def read_paths(cls) -> dict[str, dict[str, list[str]]]:
        if cls.paths is None:
            import tomllib

            with open(f"{sys.modules['standfast'].__path__[0]}/module_paths.toml", "rb") as table:
                cls.paths = tomllib.load(table)
        return cls.paths


class ModulePathLoader:
    """Makes a module whose names are imported from elsewhere on first use; ``tool=function_tool`` is an alias."""

    def __init__(self, names_by_module: Mapping[str, Sequence[str]]) -> None:
        self.names_by_module = names_by_module

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        origins = {
            name: (path, original or name)
            for path, names in self.names_by_module.items()
            for name, _, original in (entry.partition("=") for entry in names)
        }
        module.__dict__["__getattr__"], module.__dict__["__dir__"], names = _attach_names(module.__name__, origins)
        module.__dict__["__all__"] = names
