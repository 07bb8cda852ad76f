"""An agent whose model streams its words one by one, so that tests can do something in the middle of a response."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from standfast import Agent, function_tool
from standfast.base.usage import Usage
from standfast.models.interface import ModelResponse, TResponseStreamEvent, wrap_attributes
from standfast.models.request import ModelRequest, RequestModel
from standfast.models.stream_events import ResponseEventBuilder, make_text_part, usage_to_dict


def make_words(response: int, count: int) -> list[str]:
    return [f"{response}.{number} " for number in range(count)]


class Talker(RequestModel):
    """Answers with ``words`` words, ``responses`` times, each but the last with a call of the tool.

    At each of the ``gates``, such as ``1.10`` for the eleventh word of the second response, it prints the gate and
    waits until there is a file of that name in the folder.
    """

    def __init__(
        self, folder: str | Path, *, responses: int = 3, words: int = 20, pace: float = 0.0, gates: Sequence[str] = ()
    ) -> None:
        self._folder, self._responses, self._words = Path(folder), responses, words
        self._pace, self._gates = pace, set(gates)

    async def respond(self, request: ModelRequest) -> ModelResponse:
        output: list[Any] = []
        async for event in self.stream(request):
            if event.type == "response.completed":
                output = event.response.output
        return ModelResponse(output=output, usage=Usage(requests=1), response_id=None)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TResponseStreamEvent]:
        items = request.input if isinstance(request.input, list) else []
        number = sum(item.get("type") == "function_call_output" for item in items)
        builder, said = ResponseEventBuilder(None, model="talker"), make_words(number, self._words)
        message = {"type": "message", "id": f"m{number}", "role": "assistant", "status": "completed"}
        for event in builder.begin_response():
            yield wrap_attributes(event)
        yield wrap_attributes(builder.make_item_added({**message, "content": []}, 0))
        for place, word in enumerate(said):
            await self._pass_gate(f"{number}.{place}")
            event = builder.make_event("response.output_text.delta", delta=word, item_id=f"m{number}", output_index=0)
            yield wrap_attributes(event)
            await asyncio.sleep(self._pace)
        output: list[Any] = [{**message, "content": [make_text_part("".join(said))]}]
        if number + 1 < self._responses:
            call = {"type": "function_call", "id": f"f{number}", "call_id": f"c{number}", "name": "look"}
            output.append({**call, "arguments": "{}"})
        await self._pass_gate(f"{number}.end")
        yield wrap_attributes(builder.end_response(output, usage=usage_to_dict(Usage(requests=1))))

    async def _pass_gate(self, name: str) -> None:
        if name in self._gates:
            print("gate", name, flush=True)
            while not os.path.exists(self._folder / name):  # noqa: ASYNC110, ASYNC240 - another process makes it
                await asyncio.sleep(0.001)


def talker(folder: str | Path, **options: Any) -> Agent[Any]:
    @function_tool(idempotent=True)
    async def look() -> str:
        return "seen"

    return Agent("talker", tools=[look], model=Talker(folder, **options))


BOUNDARIES = ("model.answered", "run.started", "run.recovered", "run.continued")


def check_story(events: Sequence[Any], *, words: int, joined: int = 0) -> list[str]:
    """Check the order of events that one reader got; return what it heard of each response, in that order.

    Entries must be in order and complete, words in order and never repeated, and those of a response before its entry.
    Live events of a response may be missing only if a gap was reported before the entry.
    ``joined`` is the number of the last entry before the first.
    """
    stored = [event.seq for event in events if not event.live]
    assert stored == list(range(joined + 1, joined + len(stored) + 1))
    places = [tuple(map(int, event.position.split("."))) for event in events if event.position]
    assert places == sorted(set(places))
    responses, deltas, gap = list[str](), list[str](), False
    for event in events:
        if event.live and event.data.get("type") == "response.output_text.delta":
            deltas.append(event.data["delta"])
        elif event.type == "model.gap":
            gap = True
        elif event.type in BOUNDARIES:
            if event.type == "model.answered":
                text = event.data["items"][0]["content"][0]["text"]
                assert gap or text.endswith("".join(deltas)), (text, deltas)
                assert text.split()[-1].endswith(f".{words - 1}")
            if deltas or event.type == "model.answered":
                responses.append("".join(deltas))
            deltas, gap = [], False
    assert not deltas
    return responses


def make_texts(responses: int, words: int) -> list[str]:
    return ["".join(make_words(number, words)) for number in range(responses)]
