"""Calls with servers that omit optional fields, add unknown ones, or repeat and reorder messages."""

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

from factories.realtime import EventRecorder, get_texts, in_virtual_time, open_scripted_session, send_speech
from factories.realtime_protocol import make_speech
from realtime.openai_types import SERVER_EVENTS, events
from standfast import function_tool
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeSession, RealtimeState
from standfast.realtime.local import CallTool, EnergyDetector, Say, ToneTTS
from standfast.realtime.local.speech import ScriptedTranscriber
from standfast.testing.virtual_time import run_in_virtual_time

# Optional by their type, but a call cannot be understood without them.
ESSENTIAL = frozenset(
    ["id", "call_id", "type", "text", "transcript", "metadata", "conversation_id", "delta", "error", "code"]
)
UNKNOWN = {"type": "response.sparkle", "event_id": "e", "response_id": "r", "sparkle": [{"type": None}]}


def find_models(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models in a type."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for arg in get_args(annotation) for kind in find_models(arg)]


class Distortion:
    """Changes frames within their types; a ``rough`` one also removes essential fields, repeats and reorders."""

    def __init__(
        self,
        seed: int | None = None,
        *,
        rough: bool = False,
        nulled: str = "",
        inserted: Iterable[dict[str, Any]] = (),
    ) -> None:
        self.enabled = True
        self._rng, self._rough = random.Random(seed), rough
        self._probability = self._rng.choice([0.02, 0.1, 0.5]) if seed is not None else 0
        self._nulled, self._inserted = nulled, deque(inserted)

    def apply(self, frame: dict[str, Any]) -> list[dict[str, Any]]:
        if not self.enabled:
            return [frame]
        self._distort(frame, [SERVER_EVENTS[frame["type"]]])
        frames = [self._inserted.popleft(), frame] if self._inserted else [frame]
        if self._happens():
            frames.insert(0, UNKNOWN)
        if self._rough and self._happens():
            frames.append(frame)
        return frames

    @property
    def swaps(self) -> bool:
        return self.enabled and self._rough and self._happens()

    def _happens(self) -> bool:
        return self._rng.random() < self._probability

    def _distort(self, part: Any, kinds: list[type[BaseModel]]) -> None:
        if isinstance(part, list):
            for each in part:
                self._distort(each, kinds)
        if not isinstance(part, dict) or not kinds:
            return
        kind = next((kind for kind in kinds if _matches(part, kind)), kinds[0])
        for name, field in kind.model_fields.items():
            if name not in part:
                continue
            self._distort(part[name], find_models(field.annotation))
            if name == self._nulled:
                part[name] = None
            if not field.is_required() and (self._rough or name not in ESSENTIAL) and self._happens():
                if self._rng.random() < 0.5 and type(None) in get_args(field.annotation):
                    part[name] = None
                else:
                    del part[name]
        if self._happens():
            part["sparkle"] = self._rng.choice([None, 7, "new", {"type": "new"}, [[]]])


def _matches(part: dict[str, Any], kind: type[BaseModel]) -> bool:
    """Whether the discriminating fields of a part are those of a model."""
    return all(
        part.get(name) in get_args(kind.model_fields[name].annotation)
        for name in ("type", "role")
        if name in kind.model_fields and kind.model_fields[name].is_required()
    )


class DistortingTransport:
    """A transport whose incoming frames are changed."""

    def __init__(self, transport, distortion):
        self._transport, self._distortion = transport, distortion
        self._frames: deque[dict[str, Any]] = deque()

    async def send(self, frame):
        await self._transport.send(frame)

    async def receive(self):
        if not self._frames:
            await self._read()
            if self._distortion.swaps:
                try:
                    async with asyncio.timeout(0.01):
                        await self._read()
                except TimeoutError:
                    pass
                self._frames.reverse()
        return msgspec.json.encode(self._frames.popleft())

    async def close(self):
        await self._transport.close()

    async def _read(self):
        frame = msgspec.json.decode(await self._transport.receive())
        self._frames.extend(self._distortion.apply(frame))


class DistortedModel(LocalRealtimeModel):
    def __init__(self, distortion, *args, **kwargs):
        super().__init__(*args, tts=ToneTTS(), detector=EnergyDetector, **kwargs)
        self._distortion = distortion

    async def open_transport(self, options):
        return DistortingTransport(await super().open_transport(options), self._distortion)


class ShopResponder:
    """Answers the last message."""

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


class Scenario:
    """Text and speech, tools, a handoff and an interruption; then a turn whose messages are not changed."""

    def __init__(self, distortion: Distortion) -> None:
        self.distortion = distortion
        self.calls: list[str] = []

        @function_tool
        async def hours(day: str) -> str:
            """When the shop is open."""
            self.calls.append(day)
            return "nine"

        billing = RealtimeAgent(name="billing", instructions="You do the billing.")
        self.agent = RealtimeAgent(name="front", tools=[hours], handoffs=[billing])
        transcriber = ScriptedTranscriber(["What time is it?"])
        self.model = DistortedModel(distortion, ShopResponder(), pace=None, transcriber=transcriber)

    async def run(self, *, silence: float = 30.0) -> tuple[RealtimeSession, EventRecorder]:
        audio = await make_speech()
        async with open_scripted_session(self.agent, self.model) as (session, _, recorded):
            for turn in ("Hello.", "When do you open?", audio, "My bill."):
                await (session.send_message(turn) if isinstance(turn, str) else send_speech(session, turn))
                await asyncio.sleep(silence)
            await session.send_message("Count.")
            await asyncio.sleep(0.4)
            await session.interrupt()
            await asyncio.sleep(silence)
            self.distortion.enabled = False
            await session.send_message("Bye.")
            await asyncio.sleep(silence)
            assert session.state is RealtimeState.OPEN
            assert [item.model_dump() for item in session.history]
            assert {"Bye.", "You said: Bye."} <= set(get_texts(session))
        return session, recorded


async def check_scenario(distortion: Distortion) -> None:
    scenario = Scenario(distortion)
    session, recorded = await scenario.run()
    assert [event.error for event in recorded.of_type("error")] == []
    assert scenario.calls == ["Monday"]
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
    assert get_texts(session) == [
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


@in_virtual_time
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 12), marks=pytest.mark.soak)])
async def test_optional_fields_of_messages_do_not_change_a_call(seeds):
    for seed in seeds:
        await check_scenario(Distortion(seed))


@in_virtual_time
async def test_missing_conversation_ids_do_not_change_a_call():
    await check_scenario(Distortion(nulled="conversation_id"))


@in_virtual_time
@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 16), marks=pytest.mark.soak)])
async def test_a_call_survives_incomplete_repeated_and_reordered_messages(seeds):
    for seed in seeds:
        await Scenario(Distortion(seed, rough=True)).run()


def check_inserted_messages(inserted):
    scenario = Scenario(Distortion(inserted=inserted))
    run_in_virtual_time(asyncio.wait_for(scenario.run(silence=300.0), 10_000))


@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.soak)])
def test_a_call_survives_arbitrary_inserted_messages(examples):
    messages = st.sampled_from(sorted(SERVER_EVENTS)).flatmap(lambda kind: events(SERVER_EVENTS[kind]))
    check = given(st.lists(messages, min_size=5))(check_inserted_messages)
    settings(max_examples=examples, deadline=None)(check)()
