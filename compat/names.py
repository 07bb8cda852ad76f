"""Compare the public names and parameters of standfast with those of the installed openai-agents.

``python -m compat.names`` lists what is missing and fails if it is not in ``left_out.toml``, which gives the reason for
everything that stays out. Entries there that are no longer needed are listed. ``--write`` writes the table of the guide.
"""

import importlib
import inspect
import pkgutil
import sys
import tomllib
import warnings
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

LEFT_OUT = Path(__file__).with_name("left_out.toml")
GUIDE = Path(__file__).parent.parent / "docs" / "how-to" / "from-openai-agents.md"


def load_left_out() -> dict[str, str]:
    """Return the reasons by pattern: of modules, names, or parameters as ``name(parameter)``."""
    groups: list[dict[str, Any]] = tomllib.loads(LEFT_OUT.read_text())["left_out"]
    return {pattern: group["reason"] for group in groups for pattern in group["names"]}


def format_table() -> str:
    """Return what is left out as the table of the guide."""
    groups: dict[str, list[str]] = {}
    for pattern, reason in load_left_out().items():
        groups.setdefault(reason, []).append(f"`{pattern}`")
    rows = [f"| {reason} | {', '.join(names)} |\n" for reason, names in groups.items()]
    return "".join(["| reason | names |\n", "|---|---|\n", *rows])


def write_guide() -> None:
    """Replace the table of the guide."""
    before, rest = GUIDE.read_text().split("| reason | names |\n", 1)
    GUIDE.write_text(before + format_table() + rest[rest.index("\n\n") + 1 :])


def find_missing() -> list[str]:
    """Return everything public of openai-agents that standfast lacks."""
    missing: list[str] = []
    for module in _iter_modules("agents"):
        ours = _import(module.__name__.replace("agents", "standfast", 1))
        if ours is None:
            missing.append(module.__name__)
            continue
        for name in _list_names(module):
            full = f"{module.__name__}.{name}"
            if not hasattr(ours, name):
                missing.append(full)
                continue
            try:
                theirs = getattr(module, name)
            except ImportError:  # it needs an extra that is not installed
                continue
            if getattr(theirs, "__module__", module.__name__) == module.__name__:
                missing += [f"{full}({each})" for each in _find_parameters(theirs, getattr(ours, name))]
    return missing


def _iter_modules(name: str) -> Iterator[ModuleType]:
    """Yield the public modules of a package; those that need a missing extra are left out."""
    root = importlib.import_module(name)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{name}.", onerror=lambda _: None):
        if any(part.startswith("_") for part in found.name.split(".")) or ".run_internal" in found.name:
            continue
        module = _import(found.name)
        if module is not None:
            yield module


def _import(name: str) -> ModuleType | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


def _list_names(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(name for name in listed if not name.startswith("_"))
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return sorted(name for name in own if not name.startswith("_"))


def _find_parameters(theirs: Any, ours: Any) -> list[str]:
    """Return the parameters of a function, or of a class and its public methods, that ours lacks."""
    if not inspect.isclass(theirs):
        return _compare_signatures(theirs, ours)
    lacking = _compare_signatures(theirs, ours)
    for name, member in vars(theirs).items():
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property | classmethod)):
            continue
        if not hasattr(ours, name):
            lacking.append(name)
        elif inspect.isfunction(member):
            lacking += [f"{name}.{each}" for each in _compare_signatures(member, getattr(ours, name))]
    return lacking


def _compare_signatures(theirs: Any, ours: Any) -> list[str]:
    try:
        wanted, have = inspect.signature(theirs).parameters, inspect.signature(ours).parameters
    except (TypeError, ValueError):
        return []
    if any(each.kind is each.VAR_KEYWORD for each in have.values()):
        return []
    named = [name for name, each in wanted.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    return [name for name in named if name not in have and not name.startswith("_")]


def main() -> int:
    if "--write" in sys.argv:
        write_guide()
        return 0
    left_out, missing = load_left_out(), find_missing()
    used = {pattern for pattern in left_out for name in missing if fnmatchcase(name, pattern)}
    behind = [name for name in missing if not any(fnmatchcase(name, pattern) for pattern in left_out)]
    for name in behind:
        print(f"missing: {name}")
    for pattern in sorted(left_out.keys() - used):
        print(f"no longer missing, remove it from {LEFT_OUT.name}: {pattern}")
    print(f"{len(behind)} names or parameters are missing, {len(missing) - len(behind)} are left out for a reason")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
