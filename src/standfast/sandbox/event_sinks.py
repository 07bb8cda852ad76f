"""Sinks of session events: callbacks, files on the host or in the workspace, and an HTTP endpoint."""

import asyncio
import io
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from standfast.agents.types import maybe_await
from standfast.base.log import get_logger
from standfast.base.network import get_url_opener
from standfast.sandbox.errors import SandboxError
from standfast.sandbox.session_events import (
    DeliveryMode,
    EventPayloadPolicy,
    EventSink,
    OnErrorPolicy,
    SandboxSessionEvent,
    event_to_json_line,
)

_log = get_logger(__name__)


@runtime_checkable
class SandboxSessionBoundSink(Protocol):
    """A sink that has to know its sessions."""

    def bind(self, session: Any) -> None: ...


class Delivery:
    """Gives a sink its events, in order, as its mode asks for."""

    def __init__(self, sink: EventSink) -> None:
        self.sink = sink
        self._last: asyncio.Task[None] | None = None

    async def deliver(self, event: SandboxSessionEvent) -> None:
        if self.sink.mode == "sync":
            await self._handle(event, raising=self.sink.on_error == "raise")
        else:
            self._last = asyncio.create_task(self._handle_after(self._last, event))

    async def flush(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            await last

    async def _handle_after(self, before: "asyncio.Task[None] | None", event: SandboxSessionEvent) -> None:
        if before is not None:
            await before
        await self._handle(event, raising=self.sink.mode == "async" and self.sink.on_error == "raise")

    async def _handle(self, event: SandboxSessionEvent, *, raising: bool) -> None:
        try:
            await self.sink.handle(event)
        except Exception as problem:  # the sink is code of the program
            name = self.sink.name or type(self.sink).__name__
            if raising:
                raise RuntimeError(
                    f"sandbox event sink failed: {name} while handling event {event.event_id}"
                ) from problem
            if self.sink.on_error == "log":
                _log.warning("the sink %s of sandbox events failed: %r", name, problem)


class CallbackSink(EventSink):
    """Calls ``callback(event, session)``, which may be asynchronous."""

    def __init__(
        self,
        callback: Callable[[SandboxSessionEvent, Any], object],
        *,
        mode: DeliveryMode = "sync",
        on_error: OnErrorPolicy = "raise",
        payload_policy: EventPayloadPolicy | None = None,
        name: str | None = None,
    ) -> None:
        self._callback, self.mode, self.on_error = callback, mode, on_error
        self.payload_policy, self.name = payload_policy, name
        self._sessions: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

    def bind(self, session: Any) -> None:
        self._sessions[session.state.session_id] = session

    async def handle(self, event: SandboxSessionEvent) -> None:
        await maybe_await(self._callback(event, self._sessions.get(event.session_id)))


class ChainedSink(EventSink):
    """Gives each event to several sinks, one after the other."""

    mode: DeliveryMode = "sync"
    on_error: OnErrorPolicy = "raise"

    def __init__(self, *sinks: EventSink) -> None:
        self.sinks = list(sinks)

    def bind(self, session: Any) -> None:
        for sink in self.sinks:
            sink.bind(session)

    async def handle(self, event: SandboxSessionEvent) -> None:
        for sink in self.sinks:
            await sink.handle(event)


class JsonlOutboxSink(EventSink):
    """Appends events to a file of the host, one line each."""

    def __init__(
        self,
        path: Path,
        *,
        mode: DeliveryMode = "best_effort",
        on_error: OnErrorPolicy = "log",
        payload_policy: EventPayloadPolicy | None = None,
    ) -> None:
        self.path, self.mode, self.on_error, self.payload_policy = Path(path), mode, on_error, payload_policy

    async def handle(self, event: SandboxSessionEvent) -> None:
        await asyncio.to_thread(append_text, self.path, event_to_json_line(event))


class WorkspaceJsonlSink(EventSink):
    """Writes events to a file of the workspace, of which ``{session_id}`` is a part.

    ``ephemeral`` leaves the file out of snapshots. Above ``max_bytes`` the oldest lines are dropped.
    """

    def __init__(
        self,
        *,
        workspace_relpath: Path = Path("logs/events-{session_id}.jsonl"),
        ephemeral: bool = False,
        mode: DeliveryMode = "best_effort",
        on_error: OnErrorPolicy = "log",
        payload_policy: EventPayloadPolicy | None = None,
        flush_every: int = 1,
        max_bytes: int | None = None,
    ) -> None:
        self.workspace_relpath, self.ephemeral, self.max_bytes = Path(workspace_relpath), ephemeral, max_bytes
        self.mode, self.on_error, self.payload_policy = mode, on_error, payload_policy
        self.flush_every = max(1, flush_every)
        self._sessions: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()
        self._lines: dict[Any, list[str]] = {}

    def bind(self, session: Any) -> None:
        self._sessions[session.state.session_id] = session
        if self.ephemeral:
            session.register_persist_workspace_skip_path(self._get_path(session))

    def _get_path(self, session: Any) -> Path:
        return Path(str(self.workspace_relpath).replace("{session_id}", str(session.state.session_id)))

    async def handle(self, event: SandboxSessionEvent) -> None:
        session = self._sessions.get(event.session_id)
        lines = self._lines.setdefault(event.session_id, [])
        lines.append(event_to_json_line(event))
        due = len(lines) >= self.flush_every or event.op in ("stop", "shutdown")
        if session is None or not due or not await session.running():
            return
        path = self._get_path(session)
        try:
            before = (await session.read(path)).read().decode()
        except SandboxError:
            before = ""
        content = (before + "".join(lines)).encode()
        if self.max_bytes is not None and len(content) > self.max_bytes:
            content = content[-self.max_bytes :].partition(b"\n")[2]
        await session.write(path, io.BytesIO(content))
        lines.clear()


class HttpProxySink(EventSink):
    """Posts each event as JSON. Events that cannot be sent are appended to ``spool_path``, if there is one."""

    def __init__(
        self,
        endpoint: str,
        *,
        headers: dict[str, str] | None = None,
        timeout_s: float = 5.0,
        spool_path: Path | None = None,
        mode: DeliveryMode = "best_effort",
        on_error: OnErrorPolicy = "log",
        payload_policy: EventPayloadPolicy | None = None,
    ) -> None:
        if not endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint must be an HTTP address, got {endpoint!r}")
        self.endpoint, self.headers, self.timeout_s, self.spool_path = endpoint, headers, timeout_s, spool_path
        self.mode, self.on_error, self.payload_policy = mode, on_error, payload_policy

    async def handle(self, event: SandboxSessionEvent) -> None:
        await asyncio.to_thread(self._post, event_to_json_line(event))

    def _post(self, line: str) -> None:
        headers = {"Content-Type": "application/json", **(self.headers or {})}
        request = urllib.request.Request(self.endpoint, line.encode(), headers, method="POST")  # noqa: S310 - checked
        try:
            with get_url_opener().open(request, timeout=self.timeout_s):
                return
        except OSError as problem:
            if isinstance(problem, urllib.error.HTTPError):
                problem.close()
            if self.spool_path is None:
                raise
            append_text(Path(self.spool_path), line)


def append_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.write(text)
