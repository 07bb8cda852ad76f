"""A text model as the responder of a local session."""

import asyncio

import pytest

from factories.realtime import in_virtual_time
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


def open_session(model, *tools):
    local = LocalRealtimeModel(model, tts=ToneTTS(), pace=None)
    return RealtimeRunner(RealtimeAgent(name="host", tools=list(tools)), model=local).run()


async def wait_for_event(session, event_type):
    async for event in session.events():
        if event.type == event_type:
            return


class UnstreamedModel(Model):
    """Streams only its final event, as the interface allows."""

    async def get_response(self, *args, **kwargs):
        raise NotImplementedError

    async def stream_response(self, *args, **kwargs):
        part = {"type": "output_text", "text": "Here it is.", "annotations": []}
        message = {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]}
        yield {"type": "response.completed", "response": {"id": "r1", "output": [message], "usage": None}}


class IteratorModel(UnstreamedModel):
    """Its stream is an iterator without ``aclose()``."""

    def stream_response(self, *args, **kwargs):
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
        (UnstreamedModel(), "Here it is."),
        (IteratorModel(), "Here it is."),
        (FunctionModel(lambda request: REFUSAL), "I must not say that."),
    ],
)
@in_virtual_time
async def test_every_kind_of_text_output_is_spoken(model, words):
    async with await open_session(model) as session:
        await session.send_message("Tell me.")
        await wait_for_event(session, "agent_end")
        assert [part.transcript for part in session.history[-1].content] == [words]
        assert session.history[-1].status == "completed"


@in_virtual_time
async def test_earlier_items_are_sent_without_local_ids():
    inputs = []

    def respond(request):
        inputs.append(list(request.input))
        return "Yes."

    async with await open_session(FunctionModel(respond)) as session:
        for text in ("One?", "Two?"):
            await session.send_message(text)
            await wait_for_event(session, "agent_end")
    assert [item["role"] for item in inputs[1]] == ["user", "assistant", "user"]
    assert all("id" not in item for item in inputs[1])


@in_virtual_time
async def test_a_text_model_gets_each_output_directly_after_its_call():
    inputs, fetched = [], asyncio.Event()

    @function_tool
    async def fetch() -> str:
        """Fetch it."""
        await fetched.wait()
        return "a parcel"

    def respond(request):
        inputs.append(list(request.input))
        return FunctionModel.call("fetch") if len(inputs) == 1 else "Yes."

    async with await open_session(FunctionModel(respond), fetch) as session:
        await session.send_message("Fetch it.")
        await wait_for_event(session, "tool_start")
        await session.send_message("Are you still there?")
        await wait_for_event(session, "agent_end")
        fetched.set()
        await wait_for_event(session, "agent_end")
    types = ["message", "function_call", "function_call_output", "message"]
    assert [item["type"] for item in inputs[1]] == types
    assert [item["type"] for item in inputs[2]] == [*types, "message"]
    assert "not" in inputs[1][2]["output"]
    assert inputs[2][2]["output"] == "a parcel"
