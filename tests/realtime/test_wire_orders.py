"""A server tells of a turn in many orders: which of them it chooses changes nothing in what a session remembers."""

import asyncio
import base64
import random
from collections import deque
from typing import Any

import msgspec
import pytest

from realtime.wire_types import SERVER_EVENTS, faults
from realtime_kit import Heard, said, talking, virtually
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


def frame(kind: str, **parts: Any) -> dict[str, Any]:
    made = {"type": kind, "event_id": f"event_{kind}", **parts}
    assert faults(made, SERVER_EVENTS) == []
    return made


def turn(added: str) -> dict[str, tuple[list[str], dict[str, Any]]]:
    """The messages about a spoken turn and the answer to it: each with those that come before it, wherever they do."""
    where = {"response_id": "r1", "item_id": "a1", "output_index": 0, "content_index": 0}
    of_call = {"response_id": "r1", "item_id": "f1", "output_index": 1, "call_id": "c1"}
    heard = {**USER, "content": [{"type": "input_audio", "transcript": None}]}
    empty, whole = (
        {**ANSWER, "status": "in_progress", "content": []},
        {**ANSWER, "status": "completed", "content": SPOKEN},
    )
    begun, made = {**CALL, "status": "in_progress", "arguments": ""}, {**CALL, "status": "completed", "arguments": "{}"}
    item, transcription = "conversation.item", "conversation.item.input_audio_transcription.completed"
    usage = {"type": "duration", "seconds": 1.0}
    at = {"response_id": "r1", "output_index": 0}
    part = {"type": "audio", "transcript": ""}
    voice, words = "response.output_audio", "response.output_audio_transcript"
    return {
        "started": ([], frame("input_audio_buffer.speech_started", audio_start_ms=0, item_id="u1")),
        "stopped": (["started"], frame("input_audio_buffer.speech_stopped", audio_end_ms=900, item_id="u1")),
        "committed": (["stopped"], frame("input_audio_buffer.committed", item_id="u1", previous_item_id=None)),
        "user": (["committed"], frame(added, item=heard, previous_item_id=None)),
        "user done": (["user"], frame(f"{item}.done", item=heard, previous_item_id=None)),
        "transcribed": (
            ["committed"],
            frame(transcription, item_id="u1", content_index=0, transcript="When do you open?", usage=usage),
        ),
        "created": (["user"], frame("response.created", response=response("in_progress", []))),
        "out": (["created"], frame("response.output_item.added", **at, item=empty)),
        "answer": (["created"], frame(added, item=empty, previous_item_id="u1")),
        "part": (["out"], frame("response.content_part.added", **where, part=part)),
        "audio 1": (["part"], frame(f"{voice}.delta", **where, delta=SOUND)),
        "audio 2": (["audio 1"], frame(f"{voice}.delta", **where, delta=SOUND)),
        "audio done": (["audio 2"], frame(f"{voice}.done", **where)),
        "word 1": (["part"], frame(f"{words}.delta", **where, delta="One")),
        "word 2": (["word 1"], frame(f"{words}.delta", **where, delta=" moment.")),
        "words": (["word 2"], frame(f"{words}.done", **where, transcript="One moment.")),
        "part done": (["audio done", "words"], frame("response.content_part.done", **where, part=part)),
        "out done": (["part done"], frame("response.output_item.done", **at, item=whole)),
        "answer done": (["part done", "answer"], frame(f"{item}.done", item=whole, previous_item_id="u1")),
        "call out": (["out"], frame("response.output_item.added", response_id="r1", output_index=1, item=begun)),
        "call": (["created", "answer"], frame(added, item=begun, previous_item_id="a1")),
        "arguments": (["call out"], frame("response.function_call_arguments.delta", **of_call, delta="{}")),
        "arguments done": (
            ["arguments"],
            frame("response.function_call_arguments.done", **of_call, name="hours", arguments="{}"),
        ),
        "call out done": (
            ["arguments done"],
            frame("response.output_item.done", response_id="r1", output_index=1, item=made),
        ),
        "call done": (["call", "arguments done"], frame(f"{item}.done", item=made, previous_item_id="a1")),
        "done": (["out done", "call out done"], frame("response.done", response=response("completed", [whole, made]))),
    }


def ordered(messages: dict[str, tuple[list[str], dict[str, Any]]], rng: random.Random) -> list[dict[str, Any]]:
    """The messages in one of their orders. Some orders let one of two things run far ahead of the other."""
    left, found = dict(messages), []
    eager = {name: rng.random() for name in messages} if rng.random() < 0.5 else {}
    while left:
        ready = [name for name, (before, _) in left.items() if not left.keys() & set(before)]
        chosen = max(ready, key=eager.__getitem__) if eager else rng.choice(ready)
        found.append(left.pop(chosen)[1])
    return found


class Told:
    """A link over which a test tells what it wants, and which takes every change of settings."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self._frames: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def tell(self, *frames: dict[str, Any]) -> None:
        for each in frames:
            self._frames.put_nowait(each)

    async def send(self, data: bytes) -> None:
        self.sent.append(message := msgspec.json.decode(data))
        if message["type"] == "session.update":
            self.tell(frame("session.updated", session=message["session"]))

    async def receive(self) -> bytes:
        return msgspec.json.encode(await self._frames.get())

    async def close(self) -> None:
        pass


class ToldModel(RealtimeProtocolModel):
    def __init__(self) -> None:
        super().__init__()
        self.link = Told()

    async def open_transport(self, options: Any) -> Told:
        return self.link


async def hold(frames: list[dict[str, Any]]) -> tuple[Any, Heard, list[Any]]:
    made = deque[str]()

    @function_tool
    async def hours() -> str:
        """When the shop is open."""
        made.append("made")
        return "nine"

    model: Any = ToldModel()
    async with talking(RealtimeAgent(name="a", tools=[hours]), model) as (session, _, heard):
        model.link.tell(*frames)
        await asyncio.sleep(1)
        output = {"id": "o1", "type": "function_call_output", "call_id": "c1", "output": "nine"}
        model.link.tell(frame("conversation.item.added", item=output, previous_item_id="f1"))
        await asyncio.sleep(1)
    assert list(made) == ["made"]
    return session, heard, model.link.sent


@virtually
@pytest.mark.parametrize("added", ["conversation.item.added", "conversation.item.created"])
async def test_a_turn_is_remembered_the_same_in_whatever_order_it_is_told(added):
    for seed in range(30):
        frames = ordered(turn(added), random.Random(seed))
        try:
            session, heard, sent = await hold(frames)
            assert heard.of("error") == []
            assert [item.item_id for item in session.history] == ["u1", "a1", "f1"]
            assert said(session) == ["When do you open?", "One moment."]
            assert session.history[-1].output == "nine"
            assert len(heard.of("agent_start")) == len(heard.of("agent_end")) == len(heard.of("tool_end")) == 1
            assert sum(len(event.audio.data) for event in heard.of("audio")) == 9600
            assert [message["type"] for message in sent] == [
                "session.update",
                "conversation.item.create",
                "response.create",
            ]
        except BaseException as error:
            error.add_note(f"seed {seed}: {[each['type'] for each in frames]}")
            raise
