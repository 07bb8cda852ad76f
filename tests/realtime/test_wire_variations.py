"""A server may leave out what is optional, send ``null`` for it, add what nobody knows yet, and tell things twice or in
another order. A call goes on all the same."""

import asyncio
import random
from collections import deque
from collections.abc import Iterable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from realtime.wire import speech
from realtime.wire_types import SERVER_EVENTS, events
from realtime_kit import Heard, said, speak, talking, virtually
from standfast import function_tool
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeSession, RealtimeState
from standfast.realtime.local import CallTool, EnergyDetector, Say, ToneTTS
from standfast.realtime.local.stt import ScriptedTranscriber
from standfast.testing.virtual_time import run_in_virtual_time

# Optional by their type, but without them nobody could know what is meant, or what was said.
TELLING = frozenset(
    ["id", "call_id", "type", "text", "transcript", "metadata", "conversation_id", "delta", "error", "code"]
)
UNKNOWN = {"type": "response.sparkle", "event_id": "e", "response_id": "r", "sparkle": [{"type": None}]}


def kinds_in(annotation: Any) -> list[type[BaseModel]]:
    """The structures that a type may be."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for arg in get_args(annotation) for kind in kinds_in(arg)]


class Distortion:
    """Changes frames within what their types allow; ``rough`` ones also by what a call cannot be right without."""

    def __init__(
        self, seed: int | None = None, *, rough: bool = False, unsaid: str = "", inserted: Iterable[dict[str, Any]] = ()
    ) -> None:
        self.on = True
        self._rng, self._rough = random.Random(seed), rough
        self._often = self._rng.choice([0.02, 0.1, 0.5]) if seed is not None else 0
        self._unsaid, self._inserted = unsaid, deque(inserted)

    def frames(self, frame: dict[str, Any]) -> list[dict[str, Any]]:
        if not self.on:
            return [frame]
        self._distort(frame, [SERVER_EVENTS[frame["type"]]])
        found = [self._inserted.popleft(), frame] if self._inserted else [frame]
        if self._happens():
            found.insert(0, UNKNOWN)
        if self._rough and self._happens():
            found.append(frame)
        return found

    @property
    def swaps(self) -> bool:
        return self.on and self._rough and self._happens()

    def _happens(self) -> bool:
        return self._rng.random() < self._often

    def _distort(self, part: Any, kinds: list[type[BaseModel]]) -> None:
        if isinstance(part, list):
            for each in part:
                self._distort(each, kinds)
        if not isinstance(part, dict) or not kinds:
            return
        kind = next((kind for kind in kinds if _is(part, kind)), kinds[0])
        for name, field in kind.model_fields.items():
            if name not in part:
                continue
            self._distort(part[name], kinds_in(field.annotation))
            if name == self._unsaid:
                part[name] = None
            if not field.is_required() and (self._rough or name not in TELLING) and self._happens():
                if self._rng.random() < 0.5 and type(None) in get_args(field.annotation):
                    part[name] = None
                else:
                    del part[name]
        if self._happens():
            part["sparkle"] = self._rng.choice([None, 7, "new", {"type": "new"}, [[]]])


def _is(part: dict[str, Any], kind: type[BaseModel]) -> bool:
    """Whether what tells structures apart is as it is in this one."""
    return all(
        part.get(name) in get_args(kind.model_fields[name].annotation)
        for name in ("type", "role")
        if name in kind.model_fields and kind.model_fields[name].is_required()
    )


class Distorted:
    """A link whose incoming frames are changed."""

    def __init__(self, link, distortion):
        self._link, self._distortion = link, distortion
        self._frames: deque[dict[str, Any]] = deque()

    async def send(self, frame):
        await self._link.send(frame)

    async def receive(self):
        if not self._frames:
            await self._take()
            if self._distortion.swaps:
                try:
                    async with asyncio.timeout(0.01):
                        await self._take()
                except TimeoutError:
                    pass
                self._frames.reverse()
        return msgspec.json.encode(self._frames.popleft())

    async def close(self):
        await self._link.close()

    async def _take(self):
        frame = msgspec.json.decode(await self._link.receive())
        self._frames.extend(self._distortion.frames(frame))


class DistortedModel(LocalRealtimeModel):
    def __init__(self, distortion, *args, **more):
        super().__init__(*args, tts=ToneTTS(), detector=EnergyDetector, **more)
        self._distortion = distortion

    async def open_transport(self, options):
        return Distorted(await super().open_transport(options), self._distortion)


class Clerk:
    """Answers by what was said last."""

    async def respond(self, request):
        last = request.items[-1]
        if last["type"] == "function_call_output":
            yield Say("I see.")
            return
        match last["content"][0].get("text"):
            case "When do you open?":
                yield Say("A moment.")
                yield CallTool("hours", {"day": "Monday"})
            case "My bill.":
                yield CallTool("transfer_to_billing")
            case "Count.":
                yield Say("You count yourself: one two three four five six.")
            case words:
                yield Say(f"You said: {words}")


class Story:
    """Written and spoken turns, tools, a handoff and an interruption; then a turn whose messages are left alone."""

    def __init__(self, distortion: Distortion) -> None:
        self.distortion = distortion
        self.made: list[str] = []

        @function_tool
        async def hours(day: str) -> str:
            """When the shop is open."""
            self.made.append(day)
            return "nine"

        billing = RealtimeAgent(name="billing", instructions="You do the billing.")
        self.agent = RealtimeAgent(name="front", tools=[hours], handoffs=[billing])
        heard = ScriptedTranscriber(["What time is it?"])
        self.model = DistortedModel(distortion, Clerk(), pace=None, transcriber=heard)

    async def play(self, *, silence: float = 30.0) -> tuple[RealtimeSession, Heard]:
        spoken = await speech()
        async with talking(self.agent, self.model) as (session, _, heard):
            for turn in ("Hello.", "When do you open?", spoken, "My bill."):
                await (session.send_message(turn) if isinstance(turn, str) else speak(session, turn))
                await asyncio.sleep(silence)
            await session.send_message("Count.")
            await asyncio.sleep(0.4)
            await session.interrupt()
            await asyncio.sleep(silence)
            self.distortion.on = False
            await session.send_message("Bye.")
            await asyncio.sleep(silence)
            assert session.state is RealtimeState.OPEN
            assert [item.model_dump() for item in session.history]
            assert {"Bye.", "You said: Bye."} <= set(said(session))
        return session, heard


async def play_right(distortion: Distortion) -> None:
    story = Story(distortion)
    session, heard = await story.play()
    assert [event.error for event in heard.of("error")] == []
    assert story.made == ["Monday"]
    assert session.current_agent.name == "billing"
    assert [
        (item.type, item.role if item.type == "message" else item.output is not None) for item in session.history
    ] == [
        ("message", "user"),
        ("message", "assistant"),
        ("message", "user"),
        ("message", "assistant"),
        ("function_call", True),
        ("message", "assistant"),
        ("message", "user"),
        ("message", "assistant"),
        ("message", "user"),
        ("function_call", True),
        ("message", "assistant"),
        ("message", "user"),
        ("message", "assistant"),
        ("message", "user"),
        ("message", "assistant"),
    ]
    assert said(session) == [
        "Hello.",
        "You said: Hello.",
        "When do you open?",
        "A moment.",
        "I see.",
        "What time is it?",
        "You said: What time is it?",
        "My bill.",
        "I see.",
        "Count.",
        "You",
        "Bye.",
        "You said: Bye.",
    ]


@virtually
@pytest.mark.parametrize("seeds", [range(6), range(6, 12)])
async def test_a_call_is_the_same_whatever_optional_parts_its_messages_have(seeds):
    for seed in seeds:
        await play_right(Distortion(seed))


@virtually
async def test_a_call_is_the_same_where_a_server_names_no_conversation():
    await play_right(Distortion(unsaid="conversation_id"))


@virtually
@pytest.mark.parametrize("seeds", [range(8), range(8, 16)])
async def test_a_call_survives_messages_that_lack_what_they_need_or_come_twice_or_in_another_order(seeds):
    for seed in seeds:
        await Story(Distortion(seed, rough=True)).play()


@settings(max_examples=10, deadline=None)
@given(st.lists(st.sampled_from(sorted(SERVER_EVENTS)).flatmap(lambda kind: events(SERVER_EVENTS[kind])), min_size=5))
def test_a_call_survives_any_messages_that_come_in_between(inserted):
    story = Story(Distortion(inserted=inserted))
    run_in_virtual_time(asyncio.wait_for(story.play(silence=300.0), 10_000))
