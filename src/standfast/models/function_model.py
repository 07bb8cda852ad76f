"""A model that is a Python function."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.base.usage import Usage
from standfast.models.attribute_items import wrap_attributes
from standfast.models.interface import Model, ModelResponse, TResponseStreamEvent
from standfast.models.openai.chat_conversion import make_local_id, make_message_item
from standfast.models.request import ModelRequest
from standfast.models.stream_events import ResponseEventBuilder, make_response_events, make_text_part, usage_to_dict

FunctionModelOutput: TypeAlias = str | Item | Sequence[str | Item]


@dataclass(frozen=True)
class FunctionRequest(ModelRequest):
    """What the function of a :class:`FunctionModel` is given. The input is always a list of items."""

    input: list[Item]


class FunctionModel(Model):
    """Answers with what a function of the request returns: a text, an item, or several of either.

    For rules, for canned answers, for another program's model. Unlike a script it needs no memory: what it says
    depends on the conversation alone, so any process can go on with a run. :meth:`call` makes the item of a tool call.
    """

    def __init__(self, function: Callable[[FunctionRequest], MaybeAwaitable[FunctionModelOutput]]) -> None:
        self._function = function

    @staticmethod
    def call(name: str, /, **arguments: Any) -> Item:
        """A call of the tool with that name, under an id of its own."""
        text = msgspec.json.encode(arguments).decode()
        item_id, call_id = make_local_id("fc"), make_local_id("call")
        return {"type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": text}

    async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
        items = await self._call_function(args, kwargs)
        return ModelResponse(output=wrap_attributes(items), usage=Usage(requests=1), response_id=None)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[TResponseStreamEvent]:
        items = await self._call_function(args, kwargs)
        log = ResponseEventBuilder(None, model="function")
        for event in make_response_events(log, items, usage=usage_to_dict(Usage(requests=1))):
            yield wrap_attributes(event)

    async def _call_function(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Item]:
        instructions, input, settings, tools, schema, handoffs, tracing = args
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        request = FunctionRequest(items, instructions, settings, tools, schema, handoffs, tracing, **kwargs)
        said = await maybe_await(self._function(request))
        several = isinstance(said, Sequence) and not isinstance(said, str)
        return [item_from_output(part) for part in (said if several else [said])]


def item_from_output(output: object) -> Item:
    """A text becomes a message; an item stays what it is."""
    if isinstance(output, dict):
        return output
    if not isinstance(output, str):
        raise InvalidInput(f"the function of a model must return texts or items, not {type(output).__name__}")
    return make_message_item(make_local_id("msg"), [make_text_part(output)])
