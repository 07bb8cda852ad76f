"""A call: one realtime session, and the WebSockets of its page, one at a time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from standfast.base.errors import InvalidInput, StandfastError
from standfast.base.ids import new_id
from standfast.history.session import Session
from standfast.realtime.agent import RealtimeAgent
from standfast.realtime.events import RealtimeHistoryAdded, RealtimeHistoryUpdated
from standfast.realtime.model import RealtimePlaybackTracker
from standfast.realtime.runner import RealtimeRunner
from standfast.realtime.session import RealtimeSession
from standfast.server.answers import CallInfo
from standfast.server.auth.principals import Principal, Role
from standfast.server.calls.messages import (
    Decide,
    HangUp,
    HistoryChanges,
    Interrupt,
    Played,
    Text,
    describe_event,
    page_message_decoder,
)
from standfast.server.endpoints import Forbidden
from standfast.server.message_log import MessageLog

RECONNECT_SECONDS = 30.0
"""How long a call waits for a page that has lost its connection."""
CLOSE_SECONDS = 5.0
"""How long pages get to receive the rest of a call that has ended."""
MAX_AUDIO_BYTES = 500_000
"""Of one binary message: about ten seconds."""

AuditRecorder: TypeAlias = Callable[[str, Principal | None, dict[str, Any]], Awaitable[None]]
CallSource: TypeAlias = RealtimeAgent[Any] | Callable[[], RealtimeRunner]


@dataclass(frozen=True)
class ConnectedPage:
    """A page that is connected to a call, and its principal; ``wait_for_end`` returns when that has lost its access."""

    socket: WebSocket
    principal: Principal
    wait_for_end: Callable[[], Awaitable[None]]

    async def watch_access(self) -> None:
        await self.wait_for_end()
        await close_quietly(self.socket, 4401, "the credential has ended")


class Call:
    """One realtime session. :meth:`run` owns it, from the first socket to the end, through lost connections."""

    def __init__(
        self, agent: str, source: CallSource, session_id: str, principal: Principal, record: AuditRecorder
    ) -> None:
        self.call_id, self.agent, self.session_id, self.principal = new_id("call"), agent, session_id, principal
        self.started_at = time.time()
        self.log = MessageLog()
        self.session: RealtimeSession | None = None
        self._source, self._record, self._tracker = source, record, RealtimePlaybackTracker()
        self._socket: WebSocket | None = None
        self._detached = asyncio.Event()
        self._attached = asyncio.Event()
        self._hung_up = asyncio.Event()

    @property
    def info(self) -> CallInfo:
        return CallInfo(
            call_id=self.call_id,
            agent=self.agent,
            session_id=self.session_id,
            subject=self.principal.subject,
            connected=self._socket is not None,
            started_at=self.started_at,
        )

    async def run(self, page: ConnectedPage, history: Session, *, stop: asyncio.Event) -> None:
        """Hold the call until it is hung up, its page stays away, or ``stop`` is set."""
        runner = RealtimeRunner(self._source) if isinstance(self._source, RealtimeAgent) else self._source()
        session = await runner.run(session=history, model_config={"playback_tracker": self._tracker})
        async with session:
            self.session = session
            events = session.events()  # from the beginning
            async with asyncio.TaskGroup() as tasks:
                logging = tasks.create_task(self._log_events(events))
                serving = tasks.create_task(self.serve(page, after=0))
                ending = [
                    tasks.create_task(self._wait_for_absence()),
                    tasks.create_task(stop.wait()),
                    tasks.create_task(self._hung_up.wait()),
                ]
                try:
                    await asyncio.wait({logging, *ending}, return_when=asyncio.FIRST_COMPLETED)
                    await session.close()
                    await asyncio.wait({logging}, timeout=CLOSE_SECONDS)
                finally:
                    self.session = None
                    self.log.close()  # pages get the rest, and then the end of the connection
                await asyncio.wait({serving}, timeout=CLOSE_SECONDS)
                for task in (logging, serving, *ending):
                    task.cancel()

    async def _log_events(self, events: Any) -> None:
        changes = HistoryChanges()
        message: dict[str, Any] | None
        async for event in events:
            match event:
                case RealtimeHistoryUpdated():
                    message = changes.describe(event.history)
                case RealtimeHistoryAdded():
                    message = changes.add(event.item)
                case _:
                    message = describe_event(event)
            if message is not None:
                self.log.append(message | {"at": round(time.time() - self.started_at, 3)})

    async def _wait_for_absence(self) -> None:
        """Return when no page has been connected for a while."""
        while True:
            self._attached.clear()
            if self._socket is None:
                try:
                    async with asyncio.timeout(RECONNECT_SECONDS):
                        await self._attached.wait()
                except TimeoutError:
                    return
            await self._detached.wait()
            self._detached.clear()

    async def serve(self, page: ConnectedPage, *, after: int) -> None:
        """Serve a page until it disconnects, or its access has ended. A new page replaces the one before."""
        socket = page.socket
        previous, self._socket = self._socket, socket
        self._attached.set()
        if previous is not None:
            await close_quietly(previous, 4001, "another page continues the call")
        await socket.send_text(msgspec.json.encode({"type": "call"} | msgspec.to_builtins(self.info)).decode())
        beside = {asyncio.ensure_future(self._send_messages(socket, after)), asyncio.ensure_future(page.watch_access())}
        try:
            await self._receive_messages(socket, page.principal)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            if self._socket is socket:
                self._socket = None
                self._detached.set()

    async def _send_messages(self, socket: WebSocket, after: int) -> None:
        async for message in self.log.follow(after):
            await socket.send_text(message.data.decode())
        await close_quietly(socket, 1000, "the call has ended")

    async def _receive_messages(self, socket: WebSocket, principal: Principal) -> None:
        while True:
            try:
                message = await socket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return
            if message["type"] == "websocket.disconnect":
                return
            try:
                await self._handle(message, principal)
            except (StandfastError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
                self.log.append(
                    {"type": "refused", "code": getattr(problem, "code", "bad-request"), "message": str(problem)}
                )

    async def _handle(self, message: Any, principal: Principal) -> None:
        session = self.session
        if session is None:
            return
        if (audio := message.get("bytes")) is not None:
            if len(audio) > MAX_AUDIO_BYTES or len(audio) % 2:
                raise InvalidInput(f"audio is 16 bit samples, at most {MAX_AUDIO_BYTES:,} bytes in one message")
            await session.send_audio(audio)
            return
        match page_message_decoder.decode(message.get("text") or ""):
            case Text(text):
                await session.send_message(text)
            case Interrupt():
                await session.interrupt()
            case Played(item_id, content_index, ms):
                self._tracker.on_play_ms(item_id, content_index, min(max(ms, 0.0), 60_000.0))
            case Decide() as decision:
                await self.decide(principal, decision)
            case HangUp():
                self.hang_up()

    async def decide(self, principal: Principal, decision: Decide) -> bool:
        """Decide a tool call of this call; return whether it was waiting."""
        facts = {"call": self.call_id, "tool_call": decision.call_id, "decision": decision.decision}
        if principal.role < Role.APPROVER:
            await self._record("denied", principal, facts | {"code": Forbidden.code})
            raise Forbidden("deciding about a call needs the role approver")
        if self.session is None:
            return False
        if decision.decision == "approve":
            was_waiting = await self.session.approve_tool_call(decision.call_id, always=decision.always)
        else:
            was_waiting = await self.session.reject_tool_call(
                decision.call_id, always=decision.always, rejection_message=decision.message
            )
        if was_waiting:
            await self._record("decided", principal, facts)
        return was_waiting

    def hang_up(self) -> None:
        self._hung_up.set()


async def close_quietly(socket: WebSocket, code: int, reason: str) -> None:
    try:
        await socket.close(code, reason)
    except RuntimeError:  # it was closed by the other side
        return
