"""Pickle the variables of a namespace in groups that share objects, and unpickle them.

Functions of the namespace keep it as their globals: what they read is what the namespace has, before and after. Cells
of closures are kept as objects, so that closures that share one still do. Classes of the namespace are kept by value,
with their attributes, and are one class again even if several groups refer to them. The pickles need cloudpickle.
"""

import builtins
import functools
import hashlib
import io
import os
import pickle
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_MIN_BUFFER = 64 << 10
"""Smaller buffers stay inside of the pickle."""
# Objects whose identity means nothing, although pickles note it.
_PLAIN_TYPES = (
    str, bytes, int, float, complex, bool, type(None), type(...), range, slice, tuple, frozenset, types.CodeType,
    types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
)  # fmt: skip
_FUNCTION_ATTRIBUTES = ("__kwdefaults__", "__qualname__", "__doc__", "__module__", "__annotations__", "__type_params__")
_lineage = ""


class PickledGroup(NamedTuple):
    """Variables that share objects."""

    names: tuple[str, ...]
    data: bytes
    buffers: tuple[memoryview, ...]


class _Namespace:
    """Stands for the namespace inside of a pickle."""


def prepare() -> None:
    """Load what pickling needs, once per worker and before it is forked. Raises RuntimeError without cloudpickle."""
    global _lineage
    _import_cloudpickle()
    if not _lineage:
        _lineage = os.urandom(8).hex()


def _import_cloudpickle() -> Any:
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError as problem:
        raise RuntimeError(
            "captures and checkpoints need cloudpickle in the worker's environment: pip install cloudpickle"
        ) from problem
    return cloudpickle


def pickle_groups(namespace: dict[str, Any], values: dict[str, Any], unkept: dict[str, str]) -> Iterator[PickledGroup]:
    """Pickle values of the namespace in groups. Names that cannot be pickled are added to ``unkept``."""
    dump = _make_dump(namespace)
    singles: dict[str, PickledGroup] = {}
    memos: dict[str, Any] = {}
    for name, value in values.items():
        try:
            singles[name], memos[name] = dump((name,), (value,))
        except BaseException as problem:  # noqa: BLE001 - objects of the user can raise anything
            unkept[name] = describe_problem(problem)
    for names in _find_groups(memos, namespace):
        if len(names) == 1:
            yield singles[names[0]]
            continue
        try:
            yield dump(names, tuple(values[name] for name in names))[0]
        except BaseException as problem:  # noqa: BLE001
            unkept.update(dict.fromkeys(names, describe_problem(problem)))


def describe_problem(problem: BaseException) -> str:
    try:
        text = f"{type(problem).__name__}: {problem}"
    except BaseException:  # noqa: BLE001
        text = type(problem).__name__
    return text[:500].encode("utf-8", "backslashreplace").decode()


def _find_groups(memos: dict[str, Any], namespace: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the names in groups: two names are in one if their values share an object whose identity matters."""
    group_of: dict[str, list[str]] = {name: [name] for name in memos}
    owner_of: dict[int, str] = {}
    numpy = sys.modules.get("numpy")
    dtype = getattr(numpy, "dtype", None)
    ignored: tuple[type, ...] = (type, _Namespace, *((dtype,) if isinstance(dtype, type) else ()))
    for name, memo in memos.items():
        for _, value in memo.copy().values():
            if type(value) in _PLAIN_TYPES or isinstance(value, ignored):
                continue
            if type(value) is types.FunctionType and value.__globals__ is not namespace and find_import(value):
                continue
            first = owner_of.setdefault(id(value), name)
            ours, theirs = group_of[name], group_of[first]
            if ours is not theirs:
                theirs += ours
                for member in ours:
                    group_of[member] = theirs
    distinct = {id(group): group for group in group_of.values()}
    order = {name: number for number, name in enumerate(memos)}
    return [tuple(sorted(group, key=order.__getitem__)) for group in distinct.values()]


def find_import(value: Any) -> str:
    """Return ``module`` or ``module:name`` if that is where the value can be imported from, else an empty string."""
    if isinstance(value, types.ModuleType):
        name = getattr(value, "__name__", None)
        return name if isinstance(name, str) and name != "__main__" and sys.modules.get(name) is value else ""
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str) or module == "__main__":
        return ""
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return f"{module}:{qualname}" if found is value else ""


def import_value(path: str) -> Any:
    """Return what ``find_import`` named."""
    module, _, qualname = path.partition(":")
    __import__(module)
    found: Any = sys.modules[module]
    for part in qualname.split(".") if qualname else ():
        found = getattr(found, part)
    return found


def load_group(data: bytes | memoryview, buffers: tuple[bytearray | memoryview, ...]) -> tuple[Any, ...]:
    values: tuple[Any, ...] = pickle.loads(data, buffers=buffers)  # noqa: S301 - inside the sandbox
    return values


# -- pickling


def _make_dump(
    namespace: dict[str, Any],
) -> Callable[[tuple[str, ...], tuple[Any, ...]], tuple[PickledGroup, Any]]:
    """Return a function that pickles values together, and returns the objects that the pickle refers to as well."""
    cloudpickle = _import_cloudpickle()
    base: Any = cloudpickle.Pickler
    marker = _Namespace()
    name_classes = _ClassNames(cloudpickle)
    numpy = sys.modules.get("numpy")
    array_type = getattr(numpy, "ndarray", None)
    separate = _SeparateArrays()

    class GroupPickler(base):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            if kind is types.FunctionType and obj.__globals__ is namespace:
                return _reduce_function(obj, marker)
            if kind is types.CellType:
                return _reduce_cell(obj)
            if kind is _Namespace:
                return builtins.vars, (sys.modules["__main__"],)
            if kind is functools._lru_cache_wrapper and not find_import(obj):
                return load_cached, (obj.__wrapped__, *obj.cache_parameters().values())
            if kind is functools.cached_property:  # it has a lock, before Python 3.12
                return kind, (obj.func,), {"attrname": obj.attrname}
            if kind is array_type:
                return NotImplemented if id(obj) in separate.ids else _reduce_view(obj, kind)
            if kind is memoryview:
                raise pickle.PicklingError("a memory view cannot be kept")
            if kind.__module__.partition(".")[0] == "pandas":
                separate.add(obj)
            if (
                isinstance(obj, io.IOBase)
                and not isinstance(obj, io.BytesIO | io.StringIO)
                and obj not in _get_streams()
            ):
                # cloudpickle would keep a copy of what the file contains.
                raise pickle.PicklingError("an open file cannot be kept")
            if isinstance(obj, type):
                name_classes(obj)
                return _add_slots(obj, super().reducer_override(obj))
            return super().reducer_override(obj)

    def dump(names: tuple[str, ...], values: tuple[Any, ...]) -> tuple[PickledGroup, Any]:
        buffers: list[memoryview] = []

        def keep_apart(buffer: pickle.PickleBuffer) -> bool:
            view = buffer.raw()
            if view.nbytes < _MIN_BUFFER:
                return True
            buffers.append(view)
            return False

        stream = io.BytesIO()
        pickler = GroupPickler(stream, protocol=5, buffer_callback=keep_apart)
        pickler.dump(tuple(marker if value is namespace else value for value in values))
        return PickledGroup(names, stream.getvalue(), tuple(buffers)), pickler.memo

    return dump


def _get_streams() -> tuple[Any, ...]:
    return sys.stdin, sys.stdout, sys.stderr


def _reduce_function(function: types.FunctionType, marker: _Namespace) -> tuple[Any, ...]:
    arguments = (function.__code__, marker, function.__name__, function.__defaults__, function.__closure__)
    attributes = {}
    for name in _FUNCTION_ATTRIBUTES:
        try:
            attributes[name] = getattr(function, name)
        except Exception:  # noqa: BLE001, S112 - annotations are evaluated when they are read, since Python 3.14
            continue
    return types.FunctionType, arguments, (function.__dict__ or None, attributes)


class _SeparateArrays:
    """The arrays inside of objects of pandas, which copies what it shares before it changes it.

    An unpickled object does not know with whom it shares memory, so it must not.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._kept: list[Any] = []

    def add(self, obj: Any) -> None:
        attributes = getattr(obj, "__dict__", {})
        found = [getattr(obj, "_ndarray", None), *(attributes.get(name) for name in ("_data", "_mask"))]
        if type(obj).__module__.startswith("pandas.core.internals"):
            found += [getattr(block, "values", None) for block in getattr(obj, "blocks", (obj,))]
        for value in found:
            if type(value).__module__ == "numpy":
                self._kept.append(value)
                self.ids.add(id(value))


def _reduce_view(array: Any, kind: Any) -> Any:
    """Reduce an array that shares the memory of another one, or of a bytearray, to a view of that."""
    root, base = array, array.base
    while base is not None and type(base) is not bytearray:
        if type(base) is kind:
            root = base
        elif type(base) is memoryview:
            base = base.obj if type(base.obj) is bytearray else None
            continue
        elif type(base).__name__ != "DummyArray":  # numpy's own, between arrays with strides and their memory
            break
        base = base.base
    start = root.__array_interface__["data"][0]
    if type(base) is bytearray:
        root, start = base, _find_address(base, kind)
    elif root is array:
        return NotImplemented
    elif not (root.flags.c_contiguous or root.flags.f_contiguous):
        raise pickle.PicklingError("a view of an array with its axes in another order cannot be kept")
    offset = array.__array_interface__["data"][0] - start
    return load_view, (root, array.shape, array.dtype, offset, array.strides, array.flags.writeable)


def _find_address(data: bytearray, kind: Any) -> int:
    return int(kind(len(data), "u1", data).__array_interface__["data"][0]) if data else 0


def load_view(
    holder: Any, shape: tuple[int, ...], dtype: Any, offset: int, strides: tuple[int, ...], is_writeable: bool
) -> Any:
    """Return the array that ``_reduce_view`` has reduced. Checkpoints refer to this function by its name."""
    from numpy import ndarray
    from numpy.lib.stride_tricks import as_strided

    if isinstance(holder, bytearray):
        view = ndarray(shape, dtype, holder, offset, strides)
    else:
        memory = holder.reshape(-1, order="C" if holder.flags.c_contiguous else "F")
        if dtype.hasobject:
            view = as_strided(memory[offset // dtype.itemsize :], shape, strides)
        else:
            view = ndarray(shape, dtype, memory, offset, strides)
    if not is_writeable:
        view.flags.writeable = False
    return view


def load_cached(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    """Return the function with an empty cache. Checkpoints refer to this function by its name."""
    return functools.lru_cache(maxsize, typed)(function)


class ArrayMemory(bytearray):
    """The memory of a restored array, which belongs to it alone."""


def _reduce_cell(cell: types.CellType) -> tuple[Any, ...]:
    """Reduce a cell to an empty one that is filled later, since a function in it can refer to the cell."""
    try:
        return types.CellType, (), (None, {"cell_contents": cell.cell_contents})
    except ValueError:
        return types.CellType, ()


def _add_slots(kind: type, reduced: Any) -> Any:
    """Let a class that is pickled by value be created with its slots, which cloudpickle forgets."""
    slots = None if typing.NamedTuple in vars(kind).get("__orig_bases__", ()) else vars(kind).get("__slots__")
    if slots is not None and isinstance(reduced, tuple) and len(reduced[1]) > 3 and isinstance(reduced[1][3], dict):
        reduced[1][3]["__slots__"] = slots
    return reduced


class _ClassNames:
    """Gives each class the id by which cloudpickle recognises it when it is loaded.

    cloudpickle draws a random one in each process that pickles the class. All copies of a worker have to find the same,
    or an unchanged class would be another pickle each time.
    """

    def __init__(self, cloudpickle: Any) -> None:
        inner = getattr(cloudpickle, "cloudpickle", None)
        self._by_class = getattr(inner, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", None)
        self._by_id = getattr(inner, "_DYNAMIC_CLASS_TRACKER_BY_ID", None)

    def __call__(self, kind: type) -> None:
        if self._by_class is None or self._by_id is None or kind in self._by_class or find_import(kind):
            return
        name = hashlib.sha256(f"{_lineage} {id(kind)}".encode()).hexdigest()[:32]
        self._by_class[kind] = name
        self._by_id[name] = kind
