"""Events of a turn in any order that a server may choose: the resulting history is the same."""

import asyncio
import base64
import random
from typing import Any

import msgspec
import pytest

from factories.realtime import EventRecorder, get_texts, in_virtual_time, open_scripted_session
from realtime.openai_types import SERVER_EVENTS, find_type_errors
from standfast import function_tool
from standfast.realtime import RealtimeAgent
from standfast.realtime.openai.protocol_model import RealtimeProtocolModel

USER: dict[str, Any] = {"id": "u1", "type": "message", "role": "user", "status": "completed"}
ANSWER: dict[str, Any] = {"id": "a1", "type": "message", "role": "assistant"}
CALL: dict[str, Any] = {"id": "f1", "type": "function_call", "name": "hours", "call_id": "c1"}
SPOKEN = [{"type": "output_audio", "transcript": "One moment."}]
SOUND = base64.b64encode(b"\0" * 4800).decode()


def response(status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": "r1", "object": "realtime.response", "status": status, "conversation_id": "conv", "output": output}


def frame(event_type: str, **fields: Any) -> dict[str, Any]:
    result = {"type": event_type, "event_id": f"event_{event_type}", **fields}
    assert find_type_errors(result, SERVER_EVENTS) == []
    return result


def turn(added: str) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """Return the messages of a spoken turn and its response by name, each with the names that must precede it."""
    location = {"response_id": "r1", "item_id": "a1", "output_index": 0, "content_index": 0}
    of_call = {"response_id": "r1", "item_id": "f1", "output_index": 1, "call_id": "c1"}
    speech = {**USER, "content": [{"type": "input_audio", "transcript": None}]}
    empty = {**ANSWER, "status": "in_progress", "content": []}
    complete = {**ANSWER, "status": "completed", "content": SPOKEN}
    started_call = {**CALL, "status": "in_progress", "arguments": ""}
    complete_call = {**CALL, "status": "completed", "arguments": "{}"}
    item, transcription = "conversation.item", "conversation.item.input_audio_transcription.completed"
    usage = {"type": "duration", "seconds": 1.0}
    at = {"response_id": "r1", "output_index": 0}
    part = {"type": "audio", "transcript": ""}
    voice, words = "response.output_audio", "response.output_audio_transcript"
    return {
        "started": ([], frame("input_audio_buffer.speech_started", audio_start_ms=0, item_id="u1")),
        "stopped": (["started"], frame("input_audio_buffer.speech_stopped", audio_end_ms=900, item_id="u1")),
        "committed": (["stopped"], frame("input_audio_buffer.committed", item_id="u1", previous_item_id=None)),
        "user": (["committed"], frame(added, item=speech, previous_item_id=None)),
        "user done": (["user"], frame(f"{item}.done", item=speech, previous_item_id=None)),
        "transcribed": (
            ["committed"],
            frame(transcription, item_id="u1", content_index=0, transcript="When do you open?", usage=usage),
        ),
        "created": (["user"], frame("response.created", response=response("in_progress", []))),
        "out": (["created"], frame("response.output_item.added", **at, item=empty)),
        "answer": (["created"], frame(added, item=empty, previous_item_id="u1")),
        "part": (["out"], frame("response.content_part.added", **location, part=part)),
        "audio 1": (["part"], frame(f"{voice}.delta", **location, delta=SOUND)),
        "audio 2": (["audio 1"], frame(f"{voice}.delta", **location, delta=SOUND)),
        "audio done": (["audio 2"], frame(f"{voice}.done", **location)),
        "word 1": (["part"], frame(f"{words}.delta", **location, delta="One")),
        "word 2": (["word 1"], frame(f"{words}.delta", **location, delta=" moment.")),
        "words": (["word 2"], frame(f"{words}.done", **location, transcript="One moment.")),
        "part done": (["audio done", "words"], frame("response.content_part.done", **location, part=part)),
        "out done": (["part done"], frame("response.output_item.done", **at, item=complete)),
        "answer done": (["part done", "answer"], frame(f"{item}.done", item=complete, previous_item_id="u1")),
        "call out": (["out"], frame("response.output_item.added", response_id="r1", output_index=1, item=started_call)),
        "call": (["created", "answer"], frame(added, item=started_call, previous_item_id="a1")),
        "arguments": (["call out"], frame("response.function_call_arguments.delta", **of_call, delta="{}")),
        "arguments done": (
            ["arguments"],
            frame("response.function_call_arguments.done", **of_call, name="hours", arguments="{}"),
        ),
        "call out done": (
            ["arguments done"],
            frame("response.output_item.done", response_id="r1", output_index=1, item=complete_call),
        ),
        "call done": (["call", "arguments done"], frame(f"{item}.done", item=complete_call, previous_item_id="a1")),
        "done": (
            ["out done", "call out done"],
            frame("response.done", response=response("completed", [complete, complete_call])),
        ),
    }


def shuffle(messages: dict[str, tuple[list[str], dict[str, Any]]], rng: random.Random) -> list[dict[str, Any]]:
    """Return the messages in a valid order. Half of the orders let one strand run far ahead of another."""
    remaining, result = dict(messages), []
    priorities = {name: rng.random() for name in messages} if rng.random() < 0.5 else {}
    while remaining:
        ready = [name for name, (before, _) in remaining.items() if not remaining.keys() & set(before)]
        chosen = max(ready, key=priorities.__getitem__) if priorities else rng.choice(ready)
        result.append(remaining.pop(chosen)[1])
    return result


class ScriptedTransport:
    """A transport that delivers the frames of a test and accepts every update of the settings."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def deliver(self, *frames: dict[str, Any]) -> None:
        for each in frames:
            self._frames.put_nowait(each)

    async def send(self, data: bytes) -> None:
        self.sent.append(message := msgspec.json.decode(data))
        if message["type"] == "session.update":
            self.deliver(frame("session.updated", session=message["session"]))

    async def receive(self) -> bytes:
        return msgspec.json.encode(await self._frames.get())

    async def close(self) -> None:
        pass


class ScriptedTransportModel(RealtimeProtocolModel):
    def __init__(self) -> None:
        super().__init__()
        self.transport = ScriptedTransport()

    async def open_transport(self, options: Any) -> ScriptedTransport:
        return self.transport


async def run_session(frames: list[dict[str, Any]]) -> tuple[Any, EventRecorder, list[Any]]:
    calls = []

    @function_tool
    async def hours() -> str:
        """When the shop is open."""
        calls.append("hours")
        return "nine"

    model: Any = ScriptedTransportModel()
    async with open_scripted_session(RealtimeAgent(name="a", tools=[hours]), model) as (session, _, recorded):
        model.transport.deliver(*frames)
        await asyncio.sleep(1)
        output = {"id": "o1", "type": "function_call_output", "call_id": "c1", "output": "nine"}
        model.transport.deliver(frame("conversation.item.added", item=output, previous_item_id="f1"))
        await asyncio.sleep(1)
    assert calls == ["hours"]
    return session, recorded, model.transport.sent


@in_virtual_time
@pytest.mark.parametrize("added", ["conversation.item.added", "conversation.item.created"])
async def test_the_history_of_a_turn_does_not_depend_on_the_order_of_events(added):
    for seed in range(30):
        frames = shuffle(turn(added), random.Random(seed))
        try:
            session, recorded, sent = await run_session(frames)
            assert recorded.of_type("error") == []
            assert [item.item_id for item in session.history] == ["u1", "a1", "f1"]
            assert get_texts(session) == ["When do you open?", "One moment."]
            assert session.history[-1].output == "nine"
            assert (
                len(recorded.of_type("agent_start"))
                == len(recorded.of_type("agent_end"))
                == len(recorded.of_type("tool_end"))
                == 1
            )
            assert sum(len(event.audio.data) for event in recorded.of_type("audio")) == 9600
            assert [message["type"] for message in sent] == [
                "session.update",
                "conversation.item.create",
                "response.create",
            ]
        except BaseException as error:
            error.add_note(f"seed {seed}: {[each['type'] for each in frames]}")
            raise
