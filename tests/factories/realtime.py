"""Words for tests of realtime sessions: what a model tells, and somebody who listens."""

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from standfast import output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import OpenAIRealtimeWebSocketModel, RealtimeAgent, RealtimeRunner, RealtimeSession
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

PATIENCE = 30.0


def virtually(test: Callable[..., Any]) -> Callable[..., None]:
    """The test in virtual time: nothing waits in truth, and what waits for ever fails."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        run_in_virtual_time(asyncio.wait_for(test(**given), 10_000))

    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def started(response_id: str = "r1") -> RealtimeModelTurnStartedEvent:
    return RealtimeModelTurnStartedEvent(response_id=response_id)


def ended(response_id: str = "r1", **more: Any) -> RealtimeModelTurnEndedEvent:
    return RealtimeModelTurnEndedEvent(response_id=response_id, **more)


def words(text: str, item_id: str = "i1", response_id: str = "r1") -> RealtimeModelTranscriptDeltaEvent:
    return RealtimeModelTranscriptDeltaEvent(item_id, text, response_id)


def sound(ms: int = 100, item_id: str = "i1", response_id: str = "r1") -> RealtimeModelAudioEvent:
    return RealtimeModelAudioEvent(b"\0" * (48 * ms), response_id, item_id, 0)


def answer(number: int, text: str) -> tuple[Any, ...]:
    """A short answer from its beginning to its end."""
    response, item = f"r{number}", f"i{number}"
    return started(response), words(text, item, response), sound(100, item, response), ended(response)


def waiting(verdicts: dict[str, asyncio.Event]) -> RealtimeAgent[Any]:
    """An agent with a guardrail that has its verdict on a text when its event is set."""

    @output_guardrail
    async def judge(context: Any, agent: Any, output: str) -> GuardrailFunctionOutput:
        await verdicts[output].wait()
        return GuardrailFunctionOutput(None, "secret" in output)

    return RealtimeAgent(name="host", output_guardrails=[judge])


def call(name: str, call_id: str = "c1", arguments: str = "{}", response_id: str | None = None) -> Any:
    return RealtimeModelToolCallEvent(name, call_id, arguments, response_id=response_id)


def user_said(text: str, item_id: str = "u1", previous: str | None = None) -> RealtimeModelItemUpdatedEvent:
    item = UserMessageItem(item_id=item_id, previous_item_id=previous, content=[InputText(text=text)])
    return RealtimeModelItemUpdatedEvent(item)


class Heard:
    """Everything that one iterator has heard so far."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._news = asyncio.Condition()

    async def listen(self, session: RealtimeSession) -> None:
        async for event in session:
            async with self._news:
                self.events.append(event)
                self._news.notify_all()

    def types(self, *, raw: bool = False) -> list[str]:
        hidden = {"metric"} if raw else {"raw_model_event", "metric", "transcript_delta"}
        return [event.type for event in self.events if event.type not in hidden]

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    async def until(self, kind: str, count: int = 1) -> Any:
        """The ``count``-th event of this kind."""
        async with asyncio.timeout(PATIENCE), self._news:
            await self._news.wait_for(lambda: len(self.of(kind)) >= count)
        return self.of(kind)[count - 1]


@asynccontextmanager
async def listening(session: RealtimeSession) -> AsyncIterator[Heard]:
    heard = Heard()
    task = asyncio.ensure_future(heard.listen(session))
    await asyncio.sleep(0)
    try:
        yield heard
    finally:
        if not task.done():
            task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()


@asynccontextmanager
async def talking(
    agent: RealtimeAgent[Any], model: ScriptedRealtimeModel | None = None, **more: Any
) -> AsyncIterator[tuple[RealtimeSession, Any, Heard]]:
    """An open session over a scripted model, with somebody who listens."""
    used = ScriptedRealtimeModel(strict=False) if model is None else model
    run = {name: more.pop(name) for name in ("context", "model_config", "session") if name in more}
    config: Any = {"reconnect": {"first_delay": 0.001, "longest_delay": 0.01}, **more}
    session = await RealtimeRunner(agent, model=used, config=config).run(**run)
    async with listening(session) as heard, session:
        yield session, used, heard


def at(server: RealtimeServer) -> Any:
    """Where and how to connect to a server of a test."""
    return {"url": server.url, "api_key": "test"}


@asynccontextmanager
async def calling(
    server: RealtimeServer, agent: RealtimeAgent[Any], transport: Any = None, **config: Any
) -> AsyncIterator[tuple[RealtimeSession, Heard]]:
    """An open session over a real websocket, with somebody who listens."""
    model = OpenAIRealtimeWebSocketModel(transport_config=transport)
    settings: Any = {"reconnect": {"first_delay": 0.01}, **config}
    session = await RealtimeRunner(agent, model=model, config=settings).run(model_config=at(server))
    async with listening(session) as heard, session:
        yield session, heard


def said(session: RealtimeSession) -> list[str | None]:
    """What everybody said, in order; of a message that is empty so far, nothing."""
    parts: list[Any] = [item.content[0] for item in session.history if item.type == "message" and item.content]
    return [part.transcript if "audio" in part.type else part.text for part in parts]


async def speak(session: RealtimeSession, pcm: bytes) -> None:
    for start in range(0, len(pcm), 4800):
        await session.send_audio(pcm[start : start + 4800])


async def eventually(check: Callable[[], Any]) -> Any:
    """What ``check`` gives as soon as that is true."""
    async with asyncio.timeout(PATIENCE):
        while not (found := check()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
    return found


def sent(model: ScriptedRealtimeModel, kind: type) -> list[Any]:
    return [event for event in model.sent_events if isinstance(event, kind)]
