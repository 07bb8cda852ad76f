"""Save and restore the program's context object.

A mapping is saved as it is. Other objects need a registered codec or a serializer: an object may contain secrets, so
it is saved only if the program chooses to.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any, TypeAlias

from standfast.agents.approvals import Approvals
from standfast.agents.context import RunContextWrapper
from standfast.agents.errors import UserError
from standfast.base.errors import InvalidItem
from standfast.base.items import to_plain_json
from standfast.runs.core.conversion import from_usage_record, to_usage_record
from standfast.runs.core.state import PersistedStruct, State

ContextSerializer: TypeAlias = Callable[[Any], Mapping[str, Any]]
ContextDeserializer: TypeAlias = Callable[[Mapping[str, Any]], Any]
ContextOverride: TypeAlias = Mapping[str, Any] | RunContextWrapper[Any] | Any


class ContextNotSaved(UserError):
    """The context cannot be saved or restored. ``path`` names the part that cannot."""

    code = "context-not-saved"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class SavedContext(PersistedStruct, frozen=True):
    """A saved context.

    ``codec`` is the registered name of the codec, ``serializer`` for the caller's own, or ``None`` for a mapping.
    ``type`` is the name of the original type, for readers only; nothing is imported by that name.
    """

    data: Any = None
    codec: str | None = None
    type: str | None = None
    omitted: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContextCodec:
    """Functions that convert objects of a type to JSON and back."""

    name: str
    type: type[Any]
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


_CODECS: dict[str, ContextCodec] = {}


def register_context_codec(
    kind: type[Any],
    *,
    name: str | None = None,
    encode: Callable[[Any], Any] | None = None,
    decode: Callable[[Any], Any] | None = None,
) -> type[Any]:
    """Register a codec for contexts of this type. Dataclasses and pydantic models need no functions.

    The name is stored with each run and must not change while such runs are kept. Usable as a decorator.
    """
    if encode is None or decode is None:
        if hasattr(kind, "model_validate"):
            encode = encode or (lambda value: value.model_dump(mode="json"))
            decode = decode or kind.model_validate
        elif is_dataclass(kind):
            encode, decode = encode or asdict, decode or _make_dataclass_decoder(kind)
        else:
            raise UserError(f"a context codec for {kind.__name__} needs encode= and decode=")
    codec = ContextCodec(name or f"{kind.__module__}.{kind.__qualname__}", kind, encode, decode)
    _CODECS[codec.name] = codec
    return kind


def save_context(context: Any, *, serializer: ContextSerializer | None, strict: bool) -> SavedContext | None:
    """Return the context for a saved run: a deep copy, independent of later changes."""
    if context is None:
        return None
    kind = f"{type(context).__module__}.{type(context).__qualname__}"
    if serializer is not None:
        data = serializer(context)
        if not isinstance(data, Mapping):
            raise ContextNotSaved("context", f"context_serializer must return a mapping, not {type(data).__name__}")
        return _copy_context(data, "serializer", kind, strict=True)
    if isinstance(context, Mapping):
        return _copy_context(context, None, kind, strict)
    codec = next((codec for codec in _CODECS.values() if codec.type is type(context)), None)
    if codec is not None:
        return _copy_context(codec.encode(context), codec.name, kind, strict)
    if strict:
        raise ContextNotSaved("context", f"{kind} cannot be saved: register a codec for it with register_context_codec")
    warnings.warn(f"context: {kind} is not saved, because no codec is registered for it", UserWarning, stacklevel=4)
    return SavedContext(type=kind, omitted=("context",))


def restore_context(saved: SavedContext | None, *, deserializer: ContextDeserializer | None, strict: bool) -> Any:
    """Return the context of a saved run."""
    if saved is None:
        return None
    if deserializer is not None:
        if saved.data is None:
            raise ContextNotSaved(
                "context",
                f"the {saved.type or 'context'} was not saved, so there is nothing to deserialize: save the run with "
                "context_serializer, register a codec for the type, or pass context_override",
            )
        return deserializer(saved.data)
    if saved.omitted and strict:
        raise ContextNotSaved(saved.omitted[0], "it was not saved: pass context_override")
    if saved.codec is None:
        if saved.data is not None and not isinstance(saved.data, dict):
            raise ContextNotSaved("context", f"without a codec it must be a mapping, not {type(saved.data).__name__}")
        return saved.data
    codec = _CODECS.get(saved.codec)
    if codec is not None:
        return codec.decode(saved.data)
    if strict:
        raise ContextNotSaved(
            "context",
            f"the codec {saved.codec!r} is not registered in this process: register it or pass context_deserializer",
        )
    warnings.warn(
        f"context: the codec {saved.codec!r} is not registered, so the context is a dict", UserWarning, stacklevel=4
    )
    return saved.data


def _copy_context(data: Any, codec: str | None, kind: str, strict: bool) -> SavedContext:
    try:
        return SavedContext(to_plain_json(data, "context"), codec, kind if codec else None)
    except InvalidItem as error:
        if strict or not isinstance(data, Mapping):
            raise ContextNotSaved(error.path, error.problem) from None
    omitted: list[str] = []
    plain = _keep_json_parts(data, "context", omitted)
    for path in omitted:
        warnings.warn(f"{path}: not saved, because it cannot be represented in JSON", UserWarning, stacklevel=5)
    return SavedContext(plain, codec, kind if codec else None, tuple(omitted))


def _keep_json_parts(value: Any, path: str, omitted: list[str]) -> Any:
    if isinstance(value, Mapping):
        saved = {}
        for name, part in value.items():
            if not isinstance(name, str):
                omitted.append(f"{path}[{name!r}]")
                continue
            plain = _keep_json_parts(part, f"{path}.{name}", omitted)
            if f"{path}.{name}" not in omitted:
                saved[name] = plain
        return saved
    try:
        return to_plain_json(value, path)
    except InvalidItem:
        omitted.append(path)
        return None


def _make_dataclass_decoder(kind: type[Any]) -> Callable[[Any], Any]:
    def decode(data: Any) -> Any:
        from pydantic import TypeAdapter

        return TypeAdapter(kind).validate_python(data)

    return decode


def copy_run_context(context: RunContextWrapper[Any]) -> RunContextWrapper[Any]:
    """Return a copy of the context that shares only the program's object."""
    return RunContextWrapper(
        context.context,
        usage=from_usage_record(to_usage_record(context.usage)),
        approvals=context.approvals.copy(),
        tool_input=context.tool_input,
    )


def load_run_context(
    state: State,
    saved: SavedContext | None,
    *,
    override: ContextOverride | None,
    deserializer: ContextDeserializer | None,
    strict: bool,
) -> RunContextWrapper[Any]:
    """Return the context of a loaded run, with the program's object: the saved one, or that of ``override``."""
    inner = override.context if isinstance(override, RunContextWrapper) else override
    if override is None:
        inner = restore_context(saved, deserializer=deserializer, strict=strict)
    return RunContextWrapper(
        inner,
        usage=from_usage_record(state.usage),
        approvals=Approvals(list(state.approvals)),
        tool_input=state.tool_input,
    )
