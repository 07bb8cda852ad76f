"""Validation and generation of frames with the types of the ``openai`` package."""

import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent
from pydantic import BaseModel, ValidationError


def _get_members(union: Any) -> tuple[Any, ...]:
    return _get_members(get_args(union)[0]) if get_origin(union) is Annotated else get_args(union)


def _index_by_type(union: Any) -> dict[str, type[BaseModel]]:
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in _get_members(union)}


SERVER_EVENTS, CLIENT_EVENTS = _index_by_type(RealtimeServerEvent), _index_by_type(RealtimeClientEvent)

# Every session has these fields, but the package types them only for sessions that are created over HTTP.
_UNTYPED = {
    f"session.{event}.session.{name}" for event in ("created", "updated") for name in ("id", "object", "expires_at")
}
# Known only from the settings of openai-agents.
_UNTYPED |= {
    f"session.{event}.session.audio.input.turn_detection.model_version" for event in ("created", "update", "updated")
}


def _find_extra_fields(value: Any, path: str) -> Iterator[str]:
    """Yield the paths of fields that no type declares."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _find_extra_fields(getattr(value, name, None), f"{path}.{name}")
    elif isinstance(value, list):
        for part in value:
            yield from _find_extra_fields(part, f"{path}[]")


def find_type_errors(frame: dict[str, Any], kinds: dict[str, type[BaseModel]]) -> list[str]:
    """Return the missing, invalid and undeclared fields of a frame."""
    kind = kinds.get(frame["type"])
    if kind is None:
        return [f"{frame['type']}: unknown event type"]
    try:
        event = kind.model_validate_json(json.dumps(frame), strict=True)
    except ValidationError as error:
        return [f"{frame['type']}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return [extra for extra in _find_extra_fields(event, frame["type"]) if extra not in _UNTYPED]


def strategy(annotation: Any) -> st.SearchStrategy[Any]:
    """Generate any JSON value that a type allows."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return strategy(args[0])
    if origin in (Union, UnionType):
        return st.one_of([strategy(arg) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is list:
        return st.lists(strategy(args[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(st.sampled_from(["a", "b"]), strategy(args[1]), max_size=1)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _MODEL_STRATEGIES.setdefault(annotation, st.deferred(lambda: events(annotation)))
    return _SCALAR_STRATEGIES[annotation]


_MODEL_STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {}
_SCALAR_STRATEGIES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.sampled_from(["a", "b", "", "AAAA"]),
    int: st.sampled_from([0, 1, 200, 24_000]),
    float: st.sampled_from([0.0, 0.5, 1.0]),
    bool: st.booleans(),
    type(None): st.none(),
    object: st.sampled_from([None, {}, {"type": "object", "properties": {}}]),
}


def events(kind: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Generate any frame that a type allows, with and without its optional fields."""
    fields = {(field.alias or name): field for name, field in kind.model_fields.items()}
    required = {name: strategy(field.annotation) for name, field in fields.items() if field.is_required()}
    optional = {name: strategy(field.annotation) for name, field in fields.items() if not field.is_required()}
    return st.fixed_dictionaries(required, optional=optional)


def enumerate_fields(annotation: Any) -> Iterator[Any]:
    """Yield values of a type, each with the required fields and one optional field, that cover all its fields."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from enumerate_fields(args[0])
    elif origin in (Union, UnionType):
        for arg in args:
            yield from enumerate_fields(arg)
    elif origin is Literal:
        yield from args
    elif origin is list:
        yield from ([value] for value in enumerate_fields(args[0]))
    elif origin is dict:
        yield from ({"a": value} for value in enumerate_fields(args[1]))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {(field.alias or name): field for name, field in annotation.model_fields.items()}
        required = [name for name, field in fields.items() if field.is_required() or name == "type"]
        minimal = {name: next(enumerate_fields(fields[name].annotation)) for name in required}
        yield minimal
        for name, field in fields.items():
            yield from ({**minimal, name: value} for value in enumerate_fields(field.annotation) if value is not None)
    else:
        yield _EXAMPLES[annotation]


_EXAMPLES: dict[Any, Any] = {str: "a", int: 1, float: 0.5, bool: True, type(None): None, object: {}}
