"""A realtime server on a real websocket, for tests: scripted or driven by a model, and able to fail in many ways."""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Self

from holdfast.base.errors import MissingExtra
from holdfast.lifecycle.scope import Scope
from holdfast.models.contract import Model
from holdfast.realtime.local.brain import Brain, ScriptedBrain, Turn
from holdfast.realtime.local.engine import Engine
from holdfast.realtime.local.host import Host
from holdfast.realtime.local.model_brain import as_brain
from holdfast.realtime.local.speech import ToneVoice, Voice
from holdfast.realtime.local.transcription import Transcriber
from holdfast.realtime.local.vad import DetectorFactory, EnergyDetector
from holdfast.realtime.pace import checked_pace
from holdfast.testing.realtime_connection import RealtimeConnection
from holdfast.testing.realtime_faults import Fault, FaultPlan, Planned, Refuse

try:
    from websockets.asyncio.server import Server, ServerConnection, serve
    from websockets.exceptions import ConnectionClosed
    from websockets.http11 import Request, Response
except ImportError as error:
    raise MissingExtra("realtime", "a realtime server for tests") from error

_GOODBYE = 1.0
"""How many seconds clients have for the closing handshake."""


class RealtimeServer:
    """Listens on loopback while its block lasts::

        async with RealtimeServer(["Good morning."]) as server:
            model_config = {"url": server.url, "api_key": "test"}

    ``brain`` is what answers: a text model, a script of turns, or anything else that can. All connections ask the same
    one. ``pace`` is how many seconds of audio are sent in a second: 1.0 is real time, ``None`` as fast as the socket
    takes it. ``connections`` keeps what each of them received, sent and remembers, also after it has ended.
    """

    def __init__(
        self,
        brain: Model | Brain | Sequence[Turn] | None = None,
        *,
        voice: Voice | None = None,
        transcriber: Transcriber | None = None,
        detector: DetectorFactory = EnergyDetector,
        pace: float | None = None,
        session_seconds: float = 3600.0,
        api_key: str | None = None,
    ) -> None:
        self.brain = as_brain(ScriptedBrain(otherwise="Okay.") if brain is None else brain)
        self.connections: list[RealtimeConnection] = []
        self.refused = 0
        """How many handshakes were turned away."""
        self._voice, self._transcriber, self._detector = voice or ToneVoice(), transcriber, detector
        self._pace, self._session_seconds, self._api_key = checked_pace(pace), session_seconds, api_key
        self._plan = FaultPlan()
        self._arrival = asyncio.Event()
        self._server: Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            0,
            process_request=self._admit,
            compression=None,
            max_size=None,
            ping_interval=None,
            close_timeout=_GOODBYE,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        for connection in self.connections:
            connection.resume()
        self._server.close()
        closing = asyncio.ensure_future(self._server.wait_closed())
        await asyncio.wait({closing}, timeout=_GOODBYE)
        for connection in self.connections:
            connection.cut()  # A client that reads nothing does not read a goodbye either.
        await closing

    @property
    def url(self) -> str:
        """Where it listens; known once the block was entered."""
        assert self._server is not None, "enter the server first"
        port = next(iter(self._server.sockets)).getsockname()[1]
        return f"ws://127.0.0.1:{port}/v1/realtime"

    @property
    def open_connections(self) -> list[RealtimeConnection]:
        return [connection for connection in self.connections if connection.open]

    def inject(
        self, on: str, fault: Fault, *, skip: int = 0, times: int | None = 1, connection: int | None = None
    ) -> Planned:
        """Let ``fault`` happen to frames of the type ``on``: ``skip`` of them pass, then it strikes ``times`` times."""
        return self._plan.add(Planned(on, fault, skip, times, connection))

    def clear_faults(self) -> None:
        """From now on nothing fails of what was injected before."""
        self._plan.clear()

    async def connected(self, count: int = 1) -> RealtimeConnection:
        """Wait for the connection of that number, counting from 1."""
        while len(self.connections) < count:
            self._arrival.clear()
            await self._arrival.wait()
        return self.connections[count - 1]

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        for fault in self._plan.striking("connect", len(self.connections)):
            if isinstance(fault, Refuse):
                self.refused += 1
                return connection.respond(HTTPStatus(fault.status), f"{fault.message}\n")
        if self._api_key is not None and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            self.refused += 1
            return connection.respond(HTTPStatus.UNAUTHORIZED, "wrong API key\n")
        return None

    async def _serve(self, socket: ServerConnection) -> None:
        connection = RealtimeConnection(len(self.connections), socket, self._plan)
        self.connections.append(connection)
        self._arrival.set()
        now = asyncio.get_running_loop().time()
        engine = Engine(
            now=now,
            detector=self._detector,
            pace=self._pace,
            limit_seconds=self._session_seconds,
            expires_at=int(time.time() + self._session_seconds),
            model=connection.query.get("model", "local"),
            transcribes=self._transcriber is not None,
        )
        async with Scope() as scope:
            host = Host(
                engine,
                scope=scope,
                brain=self.brain,
                voice=self._voice,
                transcriber=self._transcriber,
                send=connection.send,
                hang_up=connection.drop,
            )
            try:
                await connection.serve(host, scope)
            except ConnectionClosed:
                connection.open = False
            finally:
                host.stop()
                scope.cancel()
