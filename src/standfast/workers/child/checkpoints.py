"""The namespace of a worker: its description and completions, and checkpoints of it as bytes.

Functions and classes whose source is self-contained are saved as source and executed again. Everything else is
pickled together, so that two names of one object still refer to one object afterwards. Names that cannot be saved are
reported with the reason. Checkpoints of workspaces are made elsewhere: see :mod:`standfast.workers.child.captures` and,
for how variables that share objects stay together, :mod:`standfast.workers.child.variable_groups`.
"""

import ast
import builtins
import hashlib
import io
import keyword
import re
import sys
import types
from typing import Any

import msgspec

from standfast.workers.child.cells import CellRunner
from standfast.workers.wire.messages import CheckpointMessage, NamespaceEntry, RestoreMessage

_TRAILING_NAME = re.compile(r"([A-Za-z_][\w.]*)$")
_MAX_ENTRIES = 2000
_SIZED_TYPES = (str, bytes, bytearray, list, tuple, set, frozenset, dict, range)


def list_user_names(namespace: dict[str, Any]) -> list[str]:
    return [name for name in list(namespace) if type(name) is str and not name.startswith("_")]


def describe_namespace(namespace: dict[str, Any]) -> tuple[NamespaceEntry, ...]:
    """Return name, type and size of every variable. Runs no user code: no ``__repr__``, no ``__len__``."""
    return tuple(
        describe_variable(name, namespace[name])
        for name in list_user_names(namespace)[:_MAX_ENTRIES]
        if name in namespace
    )


def describe_variable(name: str, value: Any) -> NamespaceEntry:
    kind = type(value)
    module = kind.__module__ if isinstance(kind.__module__, str) else "?"
    label = kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"
    length = len(value) if kind in _SIZED_TYPES else None
    shape, size = None, 0
    if _is_exactly(kind, "numpy", "ndarray"):
        shape, size = tuple(int(n) for n in value.shape), int(value.nbytes)
    elif _is_exactly(kind, "pandas", "DataFrame"):
        shape, size = tuple(int(n) for n in value.shape), int(value.memory_usage(index=False).sum())
    elif _is_exactly(kind, "pandas", "Series"):
        shape, size = tuple(int(n) for n in value.shape), int(value.memory_usage(index=False))
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


# The former name of the product. Stored checkpoints begin with it, so it identifies the format for good.
_MAGIC = b"holdfast-checkpoint\x01"


class BadCheckpoint(ValueError):
    """The bytes are not a checkpoint, or are damaged, or come from another Python version. Nothing was loaded."""


class CheckpointBody(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a checkpoint, after the magic bytes and the digest."""

    python: tuple[int, int]
    modules: dict[str, str]
    definitions: dict[str, str]
    pickled: bytes


def save_checkpoint(runner: CellRunner, request: CheckpointMessage) -> CheckpointMessage:
    namespace = runner.namespace
    names = list_user_names(namespace)
    modules = {n: namespace[n].__name__ for n in names if isinstance(namespace[n], types.ModuleType)}
    definitions = _find_replayable_definitions(runner, modules)
    values = {name: namespace[name] for name in names if name not in modules and name not in definitions}
    references = {id(namespace[name]): name for name in definitions}
    pickled, lost = _pickle_values(values, references)
    body = msgspec.msgpack.encode(
        CheckpointBody(
            python=(sys.version_info.major, sys.version_info.minor),
            modules=modules,
            definitions=definitions,
            pickled=pickled,
        )
    )
    kept = tuple(name for name in names if name not in lost)
    classes = sum(isinstance(namespace.get(name), type) for name in definitions)
    return CheckpointMessage(
        of=request.id,
        name=request.name,
        data=_MAGIC + hashlib.sha256(body).digest() + body,
        kept=kept,
        lost=lost,
        function_count=len(definitions) - classes,
        class_count=classes,
    )


def restore_checkpoint(runner: CellRunner, request: RestoreMessage) -> RestoreMessage:
    saved = _parse_checkpoint(request.data)
    namespace, lost = runner.namespace, dict[str, str]()
    previous = dict(namespace)
    for name in list_user_names(namespace) if request.clear_existing else ():
        del namespace[name]
    try:
        for name, module in saved.modules.items():
            try:
                __import__(module)
                namespace[name] = sys.modules[module]
            except Exception as problem:  # noqa: BLE001 - a module that is missing here is reported
                lost[name] = f"{type(problem).__name__}: {problem}"
        for name, source in saved.definitions.items():
            runner.run(source, filename=f"<restored {name}>", capture_source=True)
        restored = _ReferenceUnpickler(io.BytesIO(saved.pickled), namespace).load()
    except BaseException:
        namespace.clear()
        namespace.update(previous)
        raise
    namespace.update(restored)
    kept = tuple(name for name in (*saved.modules, *saved.definitions, *restored) if name not in lost)
    return RestoreMessage(of=request.id, kept=kept, lost=lost)


def _parse_checkpoint(data: bytes) -> CheckpointBody:
    if not data.startswith(_MAGIC):
        raise BadCheckpoint("the data is not a checkpoint of a worker")
    digest, body = data[len(_MAGIC) : len(_MAGIC) + 32], data[len(_MAGIC) + 32 :]
    if hashlib.sha256(body).digest() != digest:
        raise BadCheckpoint("the checkpoint is damaged: its digest does not match")
    try:
        saved = msgspec.msgpack.decode(body, type=CheckpointBody)
    except msgspec.DecodeError as problem:
        raise BadCheckpoint(f"the checkpoint has an unknown format: {problem}") from problem
    if saved.python != sys.version_info[:2]:
        version = ".".join(map(str, saved.python))
        raise BadCheckpoint(f"the checkpoint was written by Python {version} and can only be restored there")
    return saved


def _find_replayable_definitions(runner: CellRunner, modules: dict[str, str]) -> dict[str, str]:
    """Return the definitions that can be executed again from their source alone, in order."""
    available = {*dir(builtins), *modules}
    replayable: dict[str, str] = {}
    for name, source in runner.definitions.items():
        value = runner.namespace.get(name)
        is_original = getattr(value, "__module__", None) == "__main__" and getattr(value, "__name__", None) == name
        if not is_original or not isinstance(value, types.FunctionType | type):
            continue
        if _find_required_names(ast.parse(source).body[0]) <= available:
            replayable[name] = source
            available.add(name)
    return replayable


def _find_required_names(node: ast.stmt) -> set[str]:
    """Return the names that a definition reads when it is executed: bases, defaults, decorators, a class body."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        parts: list[ast.AST] = [*node.decorator_list, node.args]
        parts += [node.returns] if node.returns else []
        return {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}
    if isinstance(node, ast.ClassDef):
        required = {n.id for part in (*node.decorator_list, *node.bases, *node.keywords) for n in ast.walk(part)
                  if isinstance(n, ast.Name)}  # fmt: skip
        defined: set[str] = set()
        for inner in node.body:
            required |= _find_required_names(inner) - defined
            defined |= {n.id for n in ast.walk(inner) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            defined |= {inner.name} if hasattr(inner, "name") else set()
        return required
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _pickle_values(values: dict[str, Any], references: dict[int, str]) -> tuple[bytes, dict[str, str]]:
    """Pickle all values together. Values that cannot be pickled are left out and returned with the reason."""
    lost: dict[str, str] = {}
    try:
        return _dump(values, references), lost
    except BaseException:  # noqa: BLE001 - the values that fail are found below
        picklable = dict(values)
    for name, value in values.items():
        try:
            _dump({name: value}, references)
        except BaseException as problem:  # noqa: BLE001 - reported with its reason
            lost[name] = f"{type(problem).__name__}: {problem}"
            del picklable[name]
    return _dump(picklable, references), lost


def _dump(values: dict[str, Any], references: dict[int, str]) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-untyped]
    except ImportError as problem:
        raise RuntimeError(
            "checkpoints need cloudpickle in the worker's environment: pip install cloudpickle"
        ) from problem

    class CheckpointPickler(cloudpickle.Pickler):  # type: ignore[misc]
        def persistent_id(self, obj: Any) -> str | None:
            return references.get(id(obj)) if isinstance(obj, types.FunctionType | type) else None

    buffer = io.BytesIO()
    CheckpointPickler(buffer).dump(values)
    return buffer.getvalue()


class _ReferenceUnpickler:
    """Unpickles values. A reference to a definition that was executed again resolves to that definition."""

    def __init__(self, file: io.BytesIO, namespace: dict[str, Any]) -> None:
        import pickle

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, pid: Any) -> Any:
                return namespace[pid]

        self.load = Unpickler(file).load
