"""A model whose responses are computed by a Python function."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.errors import InvalidInput
from standfast.base.items import Item
from standfast.base.usage import Usage
from standfast.models.event_objects import make_event_object
from standfast.models.interface import ModelResponse, TResponseStreamEvent, wrap_attributes
from standfast.models.openai.chat_output import make_local_id, make_message_item
from standfast.models.request import ModelRequest, RequestModel
from standfast.models.stream_events import ResponseEventBuilder, make_response_events, make_text_part, usage_to_dict

FunctionModelOutput: TypeAlias = str | Item | Sequence[str | Item]


@dataclass(frozen=True)
class FunctionRequest(ModelRequest):
    """The argument of the function of a :class:`FunctionModel`. ``input`` is always a list of items."""

    input: list[Item]


class FunctionModel(RequestModel):
    """A model that responds with the return value of a function: a text, an item, or a sequence of both.

    Use it for rules, for fixed responses, or to connect another model. The response depends on the request alone,
    so any process can resume a run with it, which a script of responses does not allow. :meth:`call` makes the item
    of a tool call.
    """

    def __init__(self, function: Callable[[FunctionRequest], MaybeAwaitable[FunctionModelOutput]]) -> None:
        self._function = function

    @staticmethod
    def call(name: str, /, **arguments: Any) -> Item:
        """Return a call of the tool with that name, with a new id."""
        text = msgspec.json.encode(arguments).decode()
        item_id, call_id = make_local_id("fc"), make_local_id("call")
        return {"type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": text}

    async def respond(self, request: ModelRequest) -> ModelResponse:
        items = await self._call_function(request)
        return ModelResponse(output=wrap_attributes(items), usage=Usage(requests=1), response_id=None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        items = await self._call_function(request)
        builder = ResponseEventBuilder(None, model="function")
        for event in make_response_events(builder, items, usage=usage_to_dict(Usage(requests=1))):
            yield make_event_object(event)

    async def _call_function(self, request: ModelRequest) -> list[Item]:
        text = request.input
        items = [{"role": "user", "content": text}] if isinstance(text, str) else text
        output = await maybe_await(self._function(FunctionRequest(**{**vars(request), "input": items})))
        several = isinstance(output, Sequence) and not isinstance(output, str)
        return [item_from_output(part) for part in (output if several else [output])]


def item_from_output(output: object) -> Item:
    """Return a message for a text, and an item unchanged."""
    if isinstance(output, dict):
        return output
    if not isinstance(output, str):
        raise InvalidInput(f"the function of a FunctionModel must return texts or items, got {type(output).__name__}")
    return make_message_item(make_local_id("msg"), [make_text_part(output)])
