"""Describe a namespace and complete names in it, without running code of its objects."""

import builtins
import keyword
import re
import sys
from typing import Any

from standfast.workers.wire.messages import NamespaceEntry

_TRAILING_NAME = re.compile(r"([A-Za-z_][\w.]*)$")
_MAX_ENTRIES = 2000
_SIZED_TYPES = (str, bytes, bytearray, list, tuple, set, frozenset, dict, range)


def list_user_names(namespace: dict[str, Any]) -> list[str]:
    return [name for name in list(namespace) if type(name) is str and not name.startswith("_")]


def describe_namespace(namespace: dict[str, Any]) -> tuple[NamespaceEntry, ...]:
    """Return name, type and size of every variable. Runs no user code: no ``__repr__``, no ``__len__``."""
    return tuple(
        _describe_variable(name, namespace[name])
        for name in list_user_names(namespace)[:_MAX_ENTRIES]
        if name in namespace
    )


def _describe_variable(name: str, value: Any) -> NamespaceEntry:
    kind = type(value)
    module = kind.__module__ if isinstance(kind.__module__, str) else "?"
    label = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    length = len(value) if kind in _SIZED_TYPES else None
    shape, size = None, 0
    if _is_exactly(kind, "numpy", "ndarray"):
        shape, size = tuple(int(n) for n in value.shape), int(value.nbytes)
    elif _is_exactly(kind, "pandas", "DataFrame") or _is_exactly(kind, "pandas", "Series"):
        shape, size = tuple(int(n) for n in value.shape), int(value.memory_usage(index=False).sum())
    elif kind in _SIZED_TYPES or kind in (int, float, complex, bool):
        size = sys.getsizeof(value)
    else:
        size = object.__sizeof__(value)
    return NamespaceEntry(name, label, size, length, shape)


def _is_exactly(kind: type, module: str, name: str) -> bool:
    """Whether this is the class of that library itself. The library is not imported for it."""
    return kind is getattr(sys.modules.get(module), name, None)


def find_completions(namespace: dict[str, Any], code: str) -> tuple[str, ...]:
    """Return names that complete the end of ``code``. Attributes are looked up statically, without properties."""
    match = _TRAILING_NAME.search(code)
    if not match:
        return ()
    *path, prefix = match.group(1).split(".")
    if not path:
        pool = {*list_user_names(namespace), *dir(builtins), *keyword.kwlist}
        return tuple(sorted(name for name in pool if name.startswith(prefix)))[:_MAX_ENTRIES]
    value = namespace.get(path[0], getattr(builtins, path[0], None))
    for name in path[1:]:
        value = _get_static_attribute(value, name)
    if value is None:
        return ()
    names = {name for name in _list_attributes(value) if name.startswith(prefix)}
    matches = sorted(names if prefix.startswith("_") else {name for name in names if not name.startswith("_")})
    return tuple(".".join((*path, name)) for name in matches)[:_MAX_ENTRIES]


def _get_static_attribute(value: Any, name: str) -> Any:
    import inspect

    return inspect.getattr_static(value, name, None)


def _list_attributes(value: Any) -> set[str]:
    kinds = value.__mro__ if isinstance(value, type) else type(value).__mro__
    names = {name for kind in kinds for name in vars(kind)}
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    return names | {name for name in own if isinstance(name, str)}
