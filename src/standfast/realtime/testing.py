"""A scripted realtime model for tests. It plays a script and records what the session sends."""

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Required, TypeAlias, TypedDict, cast
from urllib.parse import urlsplit, urlunsplit

from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import AlreadyConnected, ConnectionLost, NotConnected
from standfast.realtime.model import (
    RealtimeModel,
    RealtimeModelConfig,
    RealtimeModelListener,
    RealtimeModelSendEvent,
    RealtimeModelSendSessionUpdate,
    RealtimePlaybackTracker,
)
from standfast.realtime.model_events import RealtimeModelConnectionStatusEvent, RealtimeModelEvent

RealtimeSendMatcher: TypeAlias = type[Any] | RealtimeModelSendEvent | Callable[[RealtimeModelSendEvent], bool]
"""What a step matches: an input type, an equal input, or an input that a function accepts."""


class RealtimeScriptError(Exception):
    """The session does not follow the script."""


class UnexpectedRealtimeSend(RealtimeScriptError):
    """The session sent an input that is not the next one in the script."""

    def __init__(self, message: str, *, actual: RealtimeModelSendEvent, expected: RealtimeSendMatcher | None) -> None:
        super().__init__(message)
        self.actual, self.expected = actual, expected


class UnconsumedRealtimeSteps(RealtimeScriptError):
    """The test ended before all steps were played."""

    def __init__(self, message: str, *, remaining_steps: int) -> None:
        super().__init__(message)
        self.remaining_steps = remaining_steps


class RealtimeConnectCall(TypedDict, total=False):
    """A recorded call of ``connect``. Secrets are not recorded, and the URL has no query."""

    api_key_provided: Required[bool]
    headers_provided: Required[bool]
    url: str
    call_id: str
    initial_model_settings: RealtimeSessionModelSettings
    playback_tracker: RealtimePlaybackTracker


@dataclass(frozen=True)
class RealtimeStep:
    """One step: when the session sends ``expect``, emit the events or raise the error."""

    expect: RealtimeSendMatcher
    emit: Sequence[RealtimeModelEvent] = field(default_factory=tuple)
    error: Exception | None = None

    def matches(self, event: RealtimeModelSendEvent) -> bool:
        """Return whether the event is the one that the step expects."""
        if isinstance(self.expect, type):
            return isinstance(event, self.expect)
        if callable(self.expect):
            return bool(self.expect(event))
        return self.expect == event


class ScriptedRealtimeModel(RealtimeModel):
    """A model that plays steps in order. With ``strict``, an unexpected input raises; else it is only recorded.

    Events are emitted one after the other, in order, even if a listener sends an input while it handles an event. The
    model may be connected again after it was closed or dropped.
    """

    def __init__(
        self,
        steps: Iterable[RealtimeStep] = (),
        *,
        connect_events: Iterable[RealtimeModelEvent] = (),
        connect_error: Exception | None = None,
        close_error: Exception | None = None,
        strict: bool = True,
    ) -> None:
        self._steps = deque(steps)
        self._connect_events = tuple(connect_events)
        self.connect_error, self.close_error = connect_error, close_error
        self._strict = strict
        self._connected = False
        self.closed = False
        """Whether it was closed and not connected again."""
        self.close_calls = 0
        self._listeners: list[RealtimeModelListener] = []
        self._sent: list[RealtimeModelSendEvent] = []
        self._connect_calls: list[RealtimeConnectCall] = []
        self._event_queue: deque[RealtimeModelEvent] = deque()
        self._notifying_task: asyncio.Task[Any] | None = None

    @property
    def listeners(self) -> tuple[RealtimeModelListener, ...]:
        """The listeners of the model."""
        return tuple(self._listeners)

    @property
    def sent_events(self) -> tuple[RealtimeModelSendEvent, ...]:
        """The inputs that were sent, as copies made at that moment."""
        return tuple(self._sent)

    @property
    def connect_calls(self) -> tuple[RealtimeConnectCall, ...]:
        """The calls of ``connect`` so far."""
        return tuple(self._connect_calls)

    @property
    def remaining_steps(self) -> int:
        """How many steps of the script are left."""
        return len(self._steps)

    @property
    def connected(self) -> bool:
        """Whether the model is connected."""
        return self._connected

    def assert_complete(self) -> None:
        """Raise :class:`UnconsumedRealtimeSteps` unless every step was played."""
        if self._steps:
            raise UnconsumedRealtimeSteps(
                f"{len(self._steps)} steps were not played; the next one expects {self._steps[0].expect!r}",
                remaining_steps=len(self._steps),
            )

    def add_listener(self, listener: RealtimeModelListener) -> None:
        if not any(listener is other for other in self._listeners):
            self._listeners.append(listener)

    def remove_listener(self, listener: RealtimeModelListener) -> None:
        self._listeners = [other for other in self._listeners if other is not listener]

    async def connect(self, options: RealtimeModelConfig) -> None:
        self._connect_calls.append(_describe_connect(options))
        if self.connect_error is not None:
            raise self.connect_error
        if self._connected:
            raise AlreadyConnected("the scripted model is already connected")
        self._connected, self.closed = True, False
        await self._notify_listeners(self._connect_events)

    async def close(self) -> None:
        self.close_calls += 1
        self._connected, self.closed = False, True
        if self.close_error is not None:
            raise self.close_error

    async def drop(self, error: Exception | None = None, code: int = 1006) -> None:
        """Lose the connection, as after a network failure."""
        self._connected = False
        lost = error or ConnectionLost("the scripted connection was dropped", close_code=code)
        await self._notify_listeners([RealtimeModelConnectionStatusEvent("disconnected", error=lost, code=code)])

    async def emit(self, *events: RealtimeModelEvent) -> None:
        """Emit these events now, independent of the script."""
        await self._notify_listeners(events)

    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        if not self._connected:
            raise NotConnected("the scripted model is not connected")
        self._sent.append(_copy_event(event))
        step = self._match_step(event)
        if step is None:
            return
        if step.error is not None:
            raise step.error
        await self._notify_listeners(step.emit)

    async def send_event_if(self, event: RealtimeModelSendEvent, send_if: Callable[[], bool]) -> bool:
        if not send_if():
            return False
        await self.send_event(event)
        return True

    def _match_step(self, event: RealtimeModelSendEvent) -> RealtimeStep | None:
        expected = self._steps[0].expect if self._steps else None
        if self._steps and self._steps[0].matches(event):
            return self._steps.popleft()
        if self._strict:
            description = "no further input" if expected is None else repr(expected)
            raise UnexpectedRealtimeSend(
                f"the script expects {description}, the session sent {event!r}", actual=event, expected=expected
            )
        return None

    def is_listener_task(self) -> bool:
        return self._notifying_task is not None and self._notifying_task is asyncio.current_task()

    async def _notify_listeners(self, events: Iterable[RealtimeModelEvent]) -> None:
        self._event_queue.extend(events)
        if self._notifying_task is not None:  # The call that is emitting takes these events as well.
            return
        self._notifying_task = asyncio.current_task()
        try:
            while self._event_queue:
                event = self._event_queue.popleft()
                for listener in self.listeners:
                    await listener.on_event(event)
        finally:
            self._notifying_task = None


def _describe_connect(options: RealtimeModelConfig) -> RealtimeConnectCall:
    call: dict[str, Any] = {
        "api_key_provided": options.get("api_key") is not None,
        "headers_provided": options.get("headers") is not None,
    }
    if "url" in options:
        parts = urlsplit(options["url"])
        host = parts.hostname or ""
        call["url"] = urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))
    for name in ("call_id", "playback_tracker"):
        if name in options:
            call[name] = options[name]
    if "initial_model_settings" in options:
        call["initial_model_settings"] = dict(options["initial_model_settings"])
    return cast(RealtimeConnectCall, call)


def _copy_event(event: RealtimeModelSendEvent) -> RealtimeModelSendEvent:
    """Copy an input. Tools and handoffs in settings are not copied."""
    if isinstance(event, RealtimeModelSendSessionUpdate):
        return RealtimeModelSendSessionUpdate(cast(Any, dict(event.session_settings)))
    return copy.deepcopy(event)
