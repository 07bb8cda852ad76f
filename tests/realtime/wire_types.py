"""The protocol as the ``openai`` package types it: a frame has every part that it must have, and no other."""

import json
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from openai.types.realtime import RealtimeClientEvent, RealtimeServerEvent
from pydantic import BaseModel, ValidationError


def _members(union: Any) -> tuple[Any, ...]:
    return _members(get_args(union)[0]) if get_origin(union) is Annotated else get_args(union)


def _by_type(union: Any) -> dict[str, type[BaseModel]]:
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in _members(union)}


SERVER_EVENTS, CLIENT_EVENTS = _by_type(RealtimeServerEvent), _by_type(RealtimeClientEvent)

# Every session has these, but the package types them only where a session is made over HTTP.
_UNTYPED = {
    f"session.{event}.session.{name}" for event in ("created", "updated") for name in ("id", "object", "expires_at")
}
# It is only known from what openai-agents lets a program set.
_UNTYPED |= {
    f"session.{event}.session.audio.input.turn_detection.model_version" for event in ("created", "update", "updated")
}


def _extras(value: Any, path: str) -> Iterator[str]:
    """The parts that no type knows."""
    if isinstance(value, BaseModel):
        yield from (f"{path}.{name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _extras(getattr(value, name, None), f"{path}.{name}")
    elif isinstance(value, list):
        for part in value:
            yield from _extras(part, f"{path}[]")


def faults(frame: dict[str, Any], kinds: dict[str, type[BaseModel]]) -> list[str]:
    """What is wrong with a frame."""
    kind = kinds.get(frame["type"])
    if kind is None:
        return [f"{frame['type']}: nobody knows it"]
    try:
        found = kind.model_validate_json(json.dumps(frame), strict=True)
    except ValidationError as error:
        return [f"{frame['type']}: {'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
    return [extra for extra in _extras(found, frame["type"]) if extra not in _UNTYPED]


def strategy(annotation: Any) -> st.SearchStrategy[Any]:
    """Anything that a type allows, as JSON."""
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
        return _PARTS.setdefault(annotation, st.deferred(lambda: events(annotation)))
    return _PLAIN[annotation]


_PARTS: dict[Any, st.SearchStrategy[Any]] = {}
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.sampled_from(["a", "b", "", "AAAA"]),
    int: st.sampled_from([0, 1, 200, 24_000]),
    float: st.sampled_from([0.0, 0.5, 1.0]),
    bool: st.booleans(),
    type(None): st.none(),
    object: st.sampled_from([None, {}, {"type": "object", "properties": {}}]),
}


def events(kind: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    """Any frame that a type allows: what may be missing sometimes is."""
    fields = {(field.alias or name): field for name, field in kind.model_fields.items()}
    needed = {name: strategy(field.annotation) for name, field in fields.items() if field.is_required()}
    optional = {name: strategy(field.annotation) for name, field in fields.items() if not field.is_required()}
    return st.fixed_dictionaries(needed, optional=optional)


def one_by_one(annotation: Any) -> Iterator[Any]:
    """Values of a type which together have every part that it may have, each beside what there must be."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        yield from one_by_one(args[0])
    elif origin in (Union, UnionType):
        for arg in args:
            yield from one_by_one(arg)
    elif origin is Literal:
        yield from args
    elif origin is list:
        yield from ([value] for value in one_by_one(args[0]))
    elif origin is dict:
        yield from ({"a": value} for value in one_by_one(args[1]))
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = {(field.alias or name): field for name, field in annotation.model_fields.items()}
        needed = [name for name, field in fields.items() if field.is_required() or name == "type"]
        least = {name: next(one_by_one(fields[name].annotation)) for name in needed}
        yield least
        for name, field in fields.items():
            yield from ({**least, name: value} for value in one_by_one(field.annotation) if value is not None)
    else:
        yield _ONE[annotation]


_ONE: dict[Any, Any] = {str: "a", int: 1, float: 0.5, bool: True, type(None): None, object: {}}
