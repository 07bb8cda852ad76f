"""Items and events as objects of the OpenAI library, for programs that test their types."""

from collections.abc import Callable
from functools import cache
from typing import Any

from standfast.base.items import Item
from standfast.models.openai.client import load_openai


def to_typed_item(item: Item) -> Any:
    """Return the item as the object that the OpenAI client creates for it."""
    kind = _get_item_constructors().get(item["type"])
    return item if kind is None else kind(**item)


def to_typed_event(event: Item) -> Any:
    """Return the event as the object that the OpenAI client creates for it."""
    kind = _get_event_constructors().get(event["type"])
    return event if kind is None else kind(**event)


@cache
def _get_item_constructors() -> dict[str, Callable[..., Any]]:
    load_openai("a model with an OpenAI API")
    from openai.types import responses as kinds

    return {
        "message": kinds.ResponseOutputMessage.construct,
        "function_call": kinds.ResponseFunctionToolCall.construct,
        "reasoning": kinds.ResponseReasoningItem.construct,
    }


@cache
def _get_event_constructors() -> dict[str, Callable[..., Any]]:
    load_openai("a model with an OpenAI API")
    from openai.types import responses as kinds

    # ``model_construct`` is faster and suffices for events without nested objects, which are the most frequent.
    return {
        "response.created": kinds.ResponseCreatedEvent.construct,
        "response.in_progress": kinds.ResponseInProgressEvent.construct,
        "response.completed": kinds.ResponseCompletedEvent.construct,
        "response.output_item.added": kinds.ResponseOutputItemAddedEvent.construct,
        "response.output_item.done": kinds.ResponseOutputItemDoneEvent.construct,
        "response.content_part.added": kinds.ResponseContentPartAddedEvent.construct,
        "response.content_part.done": kinds.ResponseContentPartDoneEvent.construct,
        "response.output_text.delta": kinds.ResponseTextDeltaEvent.model_construct,
        "response.output_text.done": kinds.ResponseTextDoneEvent.model_construct,
        "response.refusal.delta": kinds.ResponseRefusalDeltaEvent.model_construct,
        "response.refusal.done": kinds.ResponseRefusalDoneEvent.model_construct,
        "response.function_call_arguments.delta": kinds.ResponseFunctionCallArgumentsDeltaEvent.model_construct,
        "response.function_call_arguments.done": kinds.ResponseFunctionCallArgumentsDoneEvent.model_construct,
        "response.reasoning_summary_part.added": kinds.ResponseReasoningSummaryPartAddedEvent.construct,
        "response.reasoning_summary_part.done": kinds.ResponseReasoningSummaryPartDoneEvent.construct,
        "response.reasoning_summary_text.delta": kinds.ResponseReasoningSummaryTextDeltaEvent.model_construct,
        "response.reasoning_summary_text.done": kinds.ResponseReasoningSummaryTextDoneEvent.model_construct,
    }
