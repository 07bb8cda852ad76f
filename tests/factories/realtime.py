"""Builders for tests of realtime sessions: model events, recorded session events, and open sessions."""

import asyncio
import functools
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from standfast import output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import OpenAIRealtimeWebSocketModel, RealtimeAgent, RealtimeRunner, RealtimeSession
from standfast.realtime.errors import AcknowledgementTimeout
from standfast.realtime.items import InputText, UserMessageItem
from standfast.realtime.model_events import (
    RealtimeModelAudioEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelToolCallEvent,
    RealtimeModelTranscriptDeltaEvent,
    RealtimeModelTurnEndedEvent,
    RealtimeModelTurnStartedEvent,
)
from standfast.realtime.testing import ScriptedRealtimeModel
from standfast.testing import RealtimeServer
from standfast.testing.virtual_time import run_in_virtual_time

WAIT_TIMEOUT = 120.0
"""Seconds that a test waits for an event before it fails."""


def in_virtual_time(test: Callable[..., Any]) -> Callable[..., None]:
    """Run a test in virtual time: no real waiting, and a deadlock fails."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        run_in_virtual_time(asyncio.wait_for(test(**arguments), 10_000))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def response_started(response_id: str = "r1") -> RealtimeModelTurnStartedEvent:
    return RealtimeModelTurnStartedEvent(response_id=response_id)


def response_ended(response_id: str = "r1", **more: Any) -> RealtimeModelTurnEndedEvent:
    return RealtimeModelTurnEndedEvent(response_id=response_id, **more)


def text_delta(text: str, item_id: str = "i1", response_id: str = "r1") -> RealtimeModelTranscriptDeltaEvent:
    return RealtimeModelTranscriptDeltaEvent(item_id, text, response_id)


def audio_chunk(ms: int = 100, item_id: str = "i1", response_id: str = "r1") -> RealtimeModelAudioEvent:
    return RealtimeModelAudioEvent(b"\0" * (48 * ms), response_id, item_id, 0)


def short_response(number: int, text: str) -> tuple[Any, ...]:
    """Return the events of a short response, from its start to its end."""
    response, item = f"r{number}", f"i{number}"
    return (
        response_started(response),
        text_delta(text, item, response),
        audio_chunk(100, item, response),
        response_ended(response),
    )


def agent_with_slow_guardrail(verdicts: dict[str, asyncio.Event]) -> RealtimeAgent[Any]:
    """Return an agent with a guardrail that finishes for a text when the event of that text is set."""

    @output_guardrail
    async def check(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        await verdicts[output].wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    return RealtimeAgent(name="host", output_guardrails=[check])


def tool_call(name: str, call_id: str = "c1", arguments: str = "{}", response_id: str | None = None) -> Any:
    return RealtimeModelToolCallEvent(name, call_id, arguments, response_id=response_id)


def user_message_added(text: str, item_id: str = "u1", previous: str | None = None) -> RealtimeModelItemUpdatedEvent:
    item = UserMessageItem(item_id=item_id, previous_item_id=previous, content=[InputText(text=text)])
    return RealtimeModelItemUpdatedEvent(item)


class EventRecorder:
    """Records the events of one iterator."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._changed = asyncio.Condition()

    async def listen(self, session: RealtimeSession) -> None:
        async for event in session.events():
            async with self._changed:
                self.events.append(event)
                self._changed.notify_all()

    def types(self, *, raw: bool = False) -> list[str]:
        hidden = {"metric"} if raw else {"raw_model_event", "metric", "transcript_delta"}
        return [event.type for event in self.events if event.type not in hidden]

    def of_type(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    async def wait_for(self, kind: str, count: int = 1) -> Any:
        """Wait for the ``count``-th event of this type and return it."""
        async with asyncio.timeout(WAIT_TIMEOUT), self._changed:
            await self._changed.wait_for(lambda: len(self.of_type(kind)) >= count)
        return self.of_type(kind)[count - 1]


@asynccontextmanager
async def record_events(session: RealtimeSession) -> AsyncIterator[EventRecorder]:
    recorded = EventRecorder()
    task = asyncio.ensure_future(recorded.listen(session))
    await asyncio.sleep(0)
    try:
        yield recorded
    finally:
        if not task.done():
            task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


@asynccontextmanager
async def open_scripted_session(
    agent: RealtimeAgent[Any], model: ScriptedRealtimeModel | None = None, **more: Any
) -> AsyncIterator[tuple[RealtimeSession, Any, EventRecorder]]:
    """Open a session over a scripted model and record its events."""
    scripted = ScriptedRealtimeModel(strict=False) if model is None else model
    run = {name: more.pop(name) for name in ("context", "model_config", "session") if name in more}
    config: Any = {"reconnect": {"initial_delay": 0.001, "max_delay": 0.01}, **more}
    session = await RealtimeRunner(agent, model=scripted, config=config).run(**run)
    async with record_events(session) as recorded, session:
        yield session, scripted, recorded


def connect_options(server: RealtimeServer) -> Any:
    """Return the options to connect to a test server."""
    return {"url": server.url, "api_key": "test"}


@asynccontextmanager
async def open_websocket_session(
    server: RealtimeServer, agent: RealtimeAgent[Any], transport: Any = None, **config: Any
) -> AsyncIterator[tuple[RealtimeSession, EventRecorder]]:
    """Open a session over a real websocket and record its events."""
    model = OpenAIRealtimeWebSocketModel(transport_config=transport)
    settings: Any = {"reconnect": {"initial_delay": 0.01}, **config}
    session = await RealtimeRunner(agent, model=model, config=settings).run(model_config=connect_options(server))
    async with record_events(session) as recorded, session:
        yield session, recorded


def get_texts(session: RealtimeSession) -> list[str | None]:
    """Return the texts of all messages in order; messages without content are left out."""
    parts: list[Any] = [item.content[0] for item in session.history if item.type == "message" and item.content]
    return [part.transcript if "audio" in part.type else part.text for part in parts]


async def send_speech(session: RealtimeSession, pcm: bytes) -> None:
    for start in range(0, len(pcm), 4800):
        await session.send_audio(pcm[start : start + 4800])


async def wait_until(check: Callable[[], Any]) -> Any:
    """Wait until ``check()`` is true and return its result."""
    async with asyncio.timeout(WAIT_TIMEOUT):
        while not (result := check()):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)
    return result


def get_sent_inputs(model: ScriptedRealtimeModel, kind: type) -> list[Any]:
    return [event for event in model.sent_events if isinstance(event, kind)]


async def interrupt(session: RealtimeSession, recorded: EventRecorder) -> None:
    """Interrupt a session, and check that it did not wait for its own timeout."""
    await asyncio.wait_for(session.interrupt(), WAIT_TIMEOUT)
    assert not [event for event in recorded.of_type("error") if isinstance(event.error, AcknowledgementTimeout)]


class CallCounter:
    """Counts the function calls in a ``with`` block: a measure of work that does not depend on the clock."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> "CallCounter":
        sys.setprofile(self._count_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _count_call(self, frame: Any, event: str, argument: Any) -> None:
        self.count += event in ("call", "c_call")
