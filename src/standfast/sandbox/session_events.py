"""Events of sandbox sessions: one when an operation starts and one when it has finished, for the program's sinks."""

import functools
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, TypeAlias

from pydantic import BaseModel, Field, TypeAdapter

from standfast.base.log import get_logger
from standfast.sandbox.errors import ErrorCode, SandboxError
from standfast.sandbox.types import User
from standfast.tracing.spans import get_current_span, get_current_trace

OpName: TypeAlias = Literal[
    "start",
    "stop",
    "exec",
    "read",
    "write",
    "shutdown",
    "running",
    "persist_workspace",
    "hydrate_workspace",
    "resolve_exposed_port",
    "materialize",
    "snapshot_persist",
    "snapshot_restore",
    "apply_patch",
]
DeliveryMode: TypeAlias = Literal["sync", "async", "best_effort"]
OnErrorPolicy: TypeAlias = Literal["raise", "log", "ignore"]

_log = get_logger(__name__)


class EventPayloadPolicy(BaseModel):
    """What events contain of the data: by default the number of bytes written, and no output of commands."""

    include_exec_output: bool = False
    max_stdout_chars: int = Field(default=8000, ge=0)
    max_stderr_chars: int = Field(default=8000, ge=0)
    include_write_len: bool = True


class SandboxSessionEventBase(BaseModel):
    """The fields of both kinds of events. ``seq`` counts the events of a session."""

    version: int = 1
    event_id: uuid.UUID = Field(default_factory=uuid.uuid4)
    ts: datetime = Field(default_factory=lambda: datetime.now(UTC))
    session_id: uuid.UUID
    seq: int
    op: OpName
    phase: Literal["start", "finish"]
    span_id: str
    parent_span_id: str | None = None
    trace_id: str | None = None
    data: dict[str, object] = Field(default_factory=dict)


class SandboxSessionStartEvent(SandboxSessionEventBase):
    """An operation has started."""

    phase: Literal["start"] = "start"


class SandboxSessionFinishEvent(SandboxSessionEventBase):
    """An operation has finished; a command with another exit code than 0 is not ``ok``."""

    phase: Literal["finish"] = "finish"
    ok: bool
    duration_ms: float
    error_code: ErrorCode | None = None
    error_type: str | None = None
    error_message: str | None = None
    error_retryable: bool | None = None
    stdout: str | None = None
    stderr: str | None = None
    stdout_bytes: bytes | None = Field(default=None, exclude=True)
    stderr_bytes: bytes | None = Field(default=None, exclude=True)


SandboxSessionEvent: TypeAlias = SandboxSessionStartEvent | SandboxSessionFinishEvent
_adapter: TypeAdapter[SandboxSessionEvent] = TypeAdapter(SandboxSessionEvent)


def validate_sandbox_session_event(obj: object) -> SandboxSessionEvent:
    """Return the event of plain data."""
    return _adapter.validate_python(obj)


def event_to_json_line(event: SandboxSessionEvent) -> str:
    """Return the event as one line of JSON."""
    return json.dumps(event.model_dump(mode="json"), sort_keys=True, separators=(",", ":")) + "\n"


class EventSink(ABC):
    """Takes events. ``sync`` sinks are awaited; others get their events in order while the session continues.

    With ``on_error="raise"`` the failure of a sink ends the operation, or, of an ``async`` one, the session's end.
    ``best_effort`` sinks never do.
    """

    mode: DeliveryMode = "best_effort"
    on_error: OnErrorPolicy = "log"
    payload_policy: EventPayloadPolicy | None = None
    name: str | None = None

    def bind(self, session: Any) -> None:
        """Prepare for the events of a session."""
        return

    @abstractmethod
    async def handle(self, event: SandboxSessionEvent) -> None:
        """Take one event."""


class Instrumentation:
    """The sinks of a client's sessions.

    The policy of a sink takes precedence over that of the operation, which takes precedence over the general one.
    """

    def __init__(
        self,
        *,
        sinks: Sequence[EventSink] | None = None,
        payload_policy: EventPayloadPolicy | None = None,
        payload_policy_by_op: dict[OpName, EventPayloadPolicy] | None = None,
    ) -> None:
        from standfast.sandbox.event_sinks import Delivery

        self._make_delivery = Delivery
        self._policy, self._policies = payload_policy or EventPayloadPolicy(), dict(payload_policy_by_op or {})
        self._deliveries = [Delivery(sink) for sink in sinks or ()]

    @property
    def sinks(self) -> list[EventSink]:
        """The receivers of the events."""
        return [delivery.sink for delivery in self._deliveries]

    def add_sink(self, sink: EventSink) -> None:
        """Send later events to this sink, too."""
        self._deliveries.append(self._make_delivery(sink))

    def bind(self, session: Any) -> None:
        """Let the sinks know their session."""
        for sink in self.sinks:
            sink.bind(session)

    async def emit(self, event: SandboxSessionEvent) -> None:
        """Give the event to every sink, each with what its policy allows."""
        for delivery in self._deliveries:
            policy = delivery.sink.payload_policy or self._policies.get(event.op) or self._policy
            await delivery.deliver(_apply_policy(event, policy))

    async def flush(self) -> None:
        """Wait until the sinks have taken all events."""
        for delivery in self._deliveries:
            await delivery.flush()


def _apply_policy(event: SandboxSessionEvent, policy: EventPayloadPolicy) -> SandboxSessionEvent:
    changed: dict[str, Any] = {}
    if not policy.include_write_len and "bytes" in event.data:
        changed["data"] = {name: value for name, value in event.data.items() if name != "bytes"}
    if isinstance(event, SandboxSessionFinishEvent) and event.op == "exec":
        for name in ("stdout", "stderr"):
            content: bytes | None = getattr(event, f"{name}_bytes")
            limit = getattr(policy, f"max_{name}_chars")
            shown = policy.include_exec_output and content is not None
            changed[name] = _cut((content or b"").decode(errors="replace"), limit) if shown else None
    return event.model_copy(update=changed) if changed else event


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}…"


class Observed:
    """The events of one session."""

    _inside: ClassVar[ContextVar[bool]] = ContextVar("standfast_sandbox_operation", default=False)

    def __init__(self, session_id: uuid.UUID, instrumentation: Instrumentation) -> None:
        self._session_id, self._instrumentation, self._seq = session_id, instrumentation, 0

    async def run(self, op: OpName, data: dict[str, object], work: Callable[[], Awaitable[Any]]) -> Any:
        """Do the work between its two events. Operations inside of it, and those of sinks, have no events."""
        if self._inside.get():
            return await work()
        token = self._inside.set(True)
        try:
            return await self._run(op, data, work)
        finally:
            self._inside.reset(token)

    async def _run(self, op: OpName, data: dict[str, object], work: Callable[[], Awaitable[Any]]) -> Any:
        span, trace = get_current_span(), get_current_trace()
        common: dict[str, Any] = {
            "session_id": self._session_id,
            "op": op,
            "span_id": f"sandbox_op_{uuid.uuid4().hex}",
            "parent_span_id": None if span is None else span.span_id,
            "trace_id": None if trace is None else trace.trace_id,
        }
        await self._emit(SandboxSessionStartEvent(**common, data=data, seq=self._next()))
        if op == "stop":
            await self._instrumentation.flush()
        started, outcome, result = time.monotonic(), dict[str, Any](ok=True), None
        try:
            result = await work()
            data, outcome = _describe_result(op, data, result)
            return result
        except BaseException as error:
            outcome = _describe_error(error)
            raise
        finally:
            duration = (time.monotonic() - started) * 1000
            await self._emit(
                SandboxSessionFinishEvent(**common, data=data, seq=self._next(), duration_ms=duration, **outcome)
            )
            if op == "shutdown":
                await self._instrumentation.flush()

    def _next(self) -> int:
        self._seq += 1
        return self._seq

    async def _emit(self, event: SandboxSessionEvent) -> None:
        await self._instrumentation.emit(event)


def _describe_result(op: OpName, data: dict[str, object], result: Any) -> tuple[dict[str, object], dict[str, Any]]:
    if op == "running":
        return {**data, "alive": result}, {"ok": True}
    if op == "exec":
        code = result.exit_code
        outputs = {"stdout_bytes": result.stdout, "stderr_bytes": result.stderr}
        return {**data, "exit_code": code, "process.exit.code": code}, {"ok": code == 0, **outputs}
    return data, {"ok": True}


def _describe_error(error: BaseException) -> dict[str, Any]:
    known = isinstance(error, SandboxError)
    return {
        "ok": False,
        "error_code": error.error_code if isinstance(error, SandboxError) else None,
        "error_type": type(error).__name__,
        "error_message": str(error),
        "error_retryable": bool(error.retryable) if isinstance(error, SandboxError) else None,
    } | ({} if known else {"error_code": None})


def describe_operation(op: str, args: tuple[Any, ...], options: dict[str, Any]) -> dict[str, object]:
    """Return the data of events about the arguments of an operation."""
    user = options.get("user")
    name = user.name if isinstance(user, User) else user
    if op == "exec":
        shell = options.get("shell", True)
        return {
            "command": [str(word) for word in args],
            "timeout_s": options.get("timeout"),
            "shell": shell,
            "user": name,
        }
    if op in ("read", "write"):
        data: dict[str, object] = {"path": str(args[0] if args else options.get("path")), "user": name}
        content = args[1] if len(args) > 1 else options.get("data")
        if op == "write" and (size := _measure(content)) is not None:
            data["bytes"] = size
        return data
    return {}


def _measure(content: Any) -> int | None:
    """Return the number of bytes that are left in a file, without reading it."""
    if isinstance(content, bytes | bytearray | memoryview):
        return len(content)
    try:
        place: int = content.tell()
        end: int = content.seek(0, 2)
        content.seek(place)
    except (AttributeError, OSError, ValueError):
        return None
    return end - place


def observe(op: OpName, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the method of a session with events around it, if the session has an instrumentation."""

    @functools.wraps(method)
    async def call_observed(self: Any, *args: Any, **options: Any) -> Any:
        events: Observed | None = self.events
        if events is None:
            return await method(self, *args, **options)
        work = functools.partial(method, self, *args, **options)
        return await events.run(op, describe_operation(op, args, options), work)

    return call_observed
