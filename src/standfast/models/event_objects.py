"""Events of streams as objects of the ``openai`` package, for programs that check their types."""

import sys
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel

from standfast.models.interface import AttributeDict, TResponseStreamEvent


def make_event_object(event: dict[str, Any]) -> TResponseStreamEvent:
    """Return an event with its fields as attributes.

    It is an object of the ``openai`` package if the program has imported the types of that package, since only then
    can it ask for them, and an :class:`AttributeDict` otherwise. What the event contains is an :class:`AttributeDict`
    in both cases, or the object that was passed.
    """
    fields = AttributeDict(event)
    kind = _load_event_classes().get(event["type"]) if "openai.types.responses" in sys.modules else None
    if kind is None:
        return fields
    # Not the method of the class itself, which would convert the contents as well.
    construct: Any = BaseModel.model_construct.__func__  # type: ignore[attr-defined]
    return construct(kind, **fields)


@cache
def _load_event_classes() -> dict[str, Any]:
    """Return the classes by the ``type`` of their events."""
    from openai.types.responses import ResponseStreamEvent

    union, *_ = get_args(ResponseStreamEvent)
    return {name: kind for kind in get_args(union) for name in get_args(kind.model_fields["type"].annotation)}
