"""A text model as the brain of a call: what it is shown is what text models take, and what it says is heard."""

import asyncio

import pytest

from realtime_kit import virtually
from standfast import FunctionModel, function_tool
from standfast.models.interface import Model
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import ToneTTS

REFUSAL = {
    "type": "message",
    "id": "m1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "refusal", "refusal": "I must not say that."}],
}


def calling(model, *tools):
    local = LocalRealtimeModel(model, tts=ToneTTS(), pace=None)
    return RealtimeRunner(RealtimeAgent(name="host", tools=list(tools)), model=local).run()


async def until(session, kind, *, count=1):
    async for event in session:
        count -= event.type == kind
        if not count:
            return


class AtOnce(Model):
    """Streams nothing but its whole answer, as the contract allows."""

    async def get_response(self, *given, **more):
        raise NotImplementedError

    async def stream_response(self, *given, **more):
        part = {"type": "output_text", "text": "Here it is.", "annotations": []}
        said = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]}
        yield {"type": "response.completed", "response": {"id": "r1", "output": [said], "usage": None}}


class Iterating(AtOnce):
    """Its stream is an iterator and no generator: nobody can close it."""

    def stream_response(self, *given, **more):
        class Events:
            def __init__(self, events):
                self._events = events

            def __aiter__(self):
                return self

            async def __anext__(self):
                return await anext(self._events)

        return Events(super().stream_response())


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (AtOnce(), "Here it is."),
        (Iterating(), "Here it is."),
        (FunctionModel(lambda request: REFUSAL), "I must not say that."),
    ],
)
@virtually
async def test_what_a_text_model_says_is_heard_however_it_says_it(model, words):
    async with await calling(model) as session:
        await session.send_message("Tell me.")
        await until(session, "agent_end")
        assert [part.transcript for part in session.history[-1].content] == [words]
        assert session.history[-1].status == "completed"


@virtually
async def test_what_was_said_before_is_shown_without_names_that_no_provider_gave():
    asked = []

    def answer(request):
        asked.append(list(request.input))
        return "Yes."

    async with await calling(FunctionModel(answer)) as session:
        for text in ("One?", "Two?"):
            await session.send_message(text)
            await until(session, "agent_end")
    assert [item["role"] for item in asked[1]] == ["user", "assistant", "user"]
    assert all("id" not in item for item in asked[1])


@virtually
async def test_a_text_model_sees_every_call_with_its_output_behind_it():
    asked, brought = [], asyncio.Event()

    @function_tool
    async def fetch() -> str:
        """Fetch it."""
        await brought.wait()
        return "a parcel"

    def answer(request):
        asked.append(list(request.input))
        return FunctionModel.call("fetch") if len(asked) == 1 else "Yes."

    async with await calling(FunctionModel(answer), fetch) as session:
        await session.send_message("Fetch it.")
        await until(session, "tool_start")
        await session.send_message("Are you still there?")
        await until(session, "agent_end")
        brought.set()
        await until(session, "agent_end")
    kinds = ["message", "function_call", "function_call_output", "message"]
    assert [item["type"] for item in asked[1]] == kinds
    assert [item["type"] for item in asked[2]] == [*kinds, "message"]
    assert "not" in asked[1][2]["output"]
    assert asked[2][2]["output"] == "a parcel"
