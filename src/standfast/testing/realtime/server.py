"""A realtime server on a WebSocket for tests, scripted or driven by a model, with fault injection."""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Self

from standfast.base.errors import MissingExtra
from standfast.lifecycle.scope import Scope
from standfast.models.interface import Model
from standfast.realtime.audio import validate_pace
from standfast.realtime.local.engine import Engine
from standfast.realtime.local.engine_runner import EngineRunner
from standfast.realtime.local.responder import Responder, ScriptedResponder, ScriptTurn, as_responder
from standfast.realtime.local.speech import TextToSpeech, ToneTTS, Transcriber
from standfast.realtime.local.turn_detection import DetectorFactory, EnergyDetector
from standfast.testing.realtime.connection import Fault, FaultPlan, PlannedFault, RealtimeConnection, Reject

try:
    from websockets.asyncio.server import Server, ServerConnection, serve
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
except ImportError as error:
    raise MissingExtra("realtime", "a realtime server for tests") from error

_CLOSE_TIMEOUT = 1.0
"""The seconds that clients have for the close handshake."""


class RealtimeServer:
    """An async context manager that listens on the loopback interface::

        async with RealtimeServer(["Good morning."]) as server:
            model_config = {"url": server.url, "api_key": "test"}

    ``responder`` is a text model, a script of turns or a :class:`~standfast.realtime.local.Responder`; all connections
    share it. ``pace`` is the number of seconds of audio sent per second: 1.0 is real time, ``None`` is without pauses.
    ``connections`` keeps the frames and the conversation of each connection, also after it has ended.
    """

    def __init__(
        self,
        responder: Model | Responder | Sequence[ScriptTurn] | None = None,
        *,
        tts: TextToSpeech | None = None,
        transcriber: Transcriber | None = None,
        detector: DetectorFactory = EnergyDetector,
        pace: float | None = None,
        session_seconds: float = 3600.0,
        api_key: str | None = None,
    ) -> None:
        self.responder = as_responder(ScriptedResponder(default="Okay.") if responder is None else responder)
        self.connections: list[RealtimeConnection] = []
        self.rejected_count = 0
        """The number of handshakes that were rejected."""
        self._tts, self._transcriber, self._detector = tts or ToneTTS(), transcriber, detector
        self._pace, self._session_seconds, self._api_key = validate_pace(pace), session_seconds, api_key
        self._fault_plan = FaultPlan()
        self._connection_added = asyncio.Event()
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            process_request=self._process_request,
            compression=None,
            max_size=None,
            ping_interval=None,
            close_timeout=_CLOSE_TIMEOUT,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        for connection in self.connections:
            connection.resume()
        self._server.close()
        closing = asyncio.ensure_future(self._server.wait_closed())
        await asyncio.wait({closing}, timeout=_CLOSE_TIMEOUT)
        for connection in self.connections:
            connection.abort()  # A client that does not read never completes the close handshake.
        await closing

    @property
    def url(self) -> str:
        """The URL of the server, available inside the ``async with`` block."""
        assert self._server is not None, "the server is not running: use it in an async with block"
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}/v1/realtime"

    @property
    def open_connections(self) -> list[RealtimeConnection]:
        """The connections that are open."""
        return [connection for connection in self.connections if connection.is_open]

    def inject(
        self, on: str, fault: Fault, *, skip: int = 0, times: int | None = 1, connection: int | None = None
    ) -> PlannedFault:
        """Apply ``fault`` to frames of the type ``on``: the first ``skip`` pass, then it applies ``times`` times."""
        return self._fault_plan.add(PlannedFault(on, fault, skip, times, connection))

    def clear_faults(self) -> None:
        """Remove all faults that were injected before."""
        self._fault_plan.clear()

    async def wait_for_connection(self, count: int = 1) -> RealtimeConnection:
        """Wait until ``count`` connections were made, and return the last of them."""
        while len(self.connections) < count:
            self._connection_added.clear()
            await self._connection_added.wait()
        return self.connections[count - 1]

    def _process_request(self, connection: ServerConnection, request: Request) -> Response | None:
        for fault in self._fault_plan.take_faults("connect", len(self.connections)):
            if isinstance(fault, Reject):
                self.rejected_count += 1
                return connection.respond(HTTPStatus(fault.status), f"{fault.message}\n")
        if self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            self.rejected_count += 1
            return connection.respond(HTTPStatus.UNAUTHORIZED, "wrong API key\n")
        return None

    async def _serve(self, socket: ServerConnection) -> None:
        connection = RealtimeConnection(len(self.connections), socket, self._fault_plan)
        self.connections.append(connection)
        self._connection_added.set()
        now = asyncio.get_running_loop().time()
        engine = Engine(
            now=now,
            detector=self._detector,
            pace=self._pace,
            limit_seconds=self._session_seconds,
            expires_at=int(time.time() + self._session_seconds),
            model=connection.query.get("model", "local"),
            has_transcriber=self._transcriber is not None,
        )
        async with Scope() as scope:
            runner = EngineRunner(
                engine,
                scope=scope,
                responder=self.responder,
                tts=self._tts,
                transcriber=self._transcriber,
                send=connection.send,
                close_connection=connection.close,
            )
            try:
                await connection.serve(runner, scope)
            except ConnectionClosed:
                connection.is_open = False
            finally:
                runner.stop()
                scope.cancel()
