"""A model that is a Python function."""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from holdfast.agents.types import MaybeAwaitable, resolved
from holdfast.base.errors import InvalidInput
from holdfast.base.items import Item
from holdfast.base.usage import Usage
from holdfast.models.asking import ModelRequest
from holdfast.models.contract import Model, ModelResponse, TResponseStreamEvent
from holdfast.models.events import EventLog, text_part, usage_part, whole_answer
from holdfast.models.openai_chat_items import made_up, message_item
from holdfast.models.raw import readable

Said: TypeAlias = str | Item | Sequence[str | Item]


@dataclass(frozen=True)
class FunctionRequest(ModelRequest):
    """What the function of a :class:`FunctionModel` is given. The input is always a list of items."""

    input: list[Item]


class FunctionModel(Model):
    """Answers with what a function of the request returns: a text, an item, or several of either.

    For rules, for canned answers, for another program's model. Unlike a script it needs no memory: what it says
    depends on the conversation alone, so any process can go on with a run. :meth:`call` makes the item of a tool call.
    """

    def __init__(self, answer: Callable[[FunctionRequest], MaybeAwaitable[Said]]) -> None:
        self._answer = answer

    @staticmethod
    def call(name: str, /, **arguments: Any) -> Item:
        """A call of the tool with that name, under an id of its own."""
        text = msgspec.json.encode(arguments).decode()
        item_id, call_id = made_up("fc"), made_up("call")
        return {"type": "function_call", "id": item_id, "call_id": call_id, "name": name, "arguments": text}

    async def get_response(self, *given: Any, **more: Any) -> ModelResponse:
        items = await self._items(given, more)
        return ModelResponse(output=readable(items), usage=Usage(requests=1), response_id=None)

    async def stream_response(self, *given: Any, **more: Any) -> AsyncIterator[TResponseStreamEvent]:
        items = await self._items(given, more)
        log = EventLog(None, model="function")
        for event in whole_answer(log, items, usage=usage_part(Usage(requests=1))):
            yield readable(event)

    async def _items(self, given: tuple[Any, ...], more: dict[str, Any]) -> list[Item]:
        instructions, input, settings, tools, schema, handoffs, tracing = given
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        request = FunctionRequest(items, instructions, settings, tools, schema, handoffs, tracing, **more)
        said = await resolved(self._answer(request))
        several = isinstance(said, Sequence) and not isinstance(said, str)
        return [item_of(part) for part in (said if several else [said])]


def item_of(said: object) -> Item:
    """A text becomes a message; an item stays what it is."""
    if isinstance(said, dict):
        return said
    if not isinstance(said, str):
        raise InvalidInput(f"the function of a model must return texts or items, not {type(said).__name__}")
    return message_item(made_up("msg"), [text_part(said)])
