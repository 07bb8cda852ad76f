"""A server process: it prints nothing by itself, limits the heads of requests, and drains on a signal to stop."""

import asyncio
import gc
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from standfast.base.log import get_logger
from standfast.models.prices import load_price_list

HEAD_SECONDS = 20.0
"""From the connection, or the first byte of a further request on it, to the end of the headers."""
MAX_HEAD_BYTES = 65_536
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_log = get_logger(__name__)
DRAIN_TIMEOUT = 20.0
"""Seconds that open requests get to end after their streams were closed."""
MAX_SOCKET_MESSAGE = 1_000_000
"""Bytes of one message of a WebSocket."""


class JoiningTransport:
    """Sends what is written within one iteration of the event loop at once: each system call takes its time."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._parts = transport, list[bytes]()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._transport, name)
        setattr(self, name, found)
        return found

    def write(self, data: bytes) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            data, self._parts = b"".join(self._parts), []
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()


class LimitedHeadProtocol(HttpToolsProtocol):
    """Closes a connection on which no complete head of a request arrives in time, or a very large one."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoiningTransport(transport))  # type: ignore[arg-type]
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_timer is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head_timer is None:  # a further request on this connection
            self._expect_head()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()


def limit_heads(seconds: float) -> type[LimitedHeadProtocol]:
    """Return the protocol with this limit of time."""
    return type("LimitedHeadProtocol", (LimitedHeadProtocol,), {"head_seconds": seconds})


class DrainingServer(uvicorn.Server):
    """Stops in order: readiness turns false, streams end with a hint to reconnect, requests end, then the listener.

    A second signal ends it at once.
    """

    def __init__(self, config: uvicorn.Config, app: Starlette, *, drain_delay: float) -> None:
        super().__init__(config)
        self.app, self.drain_delay = app, drain_delay
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        try:
            await super().serve(sockets)
        finally:
            if self._draining is not None:
                self._draining.cancel()
                await asyncio.wait({self._draining})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is None or self.app.state.service.draining.is_set():
            super().handle_exit(sig, frame)
        else:
            self._loop.call_soon_threadsafe(self.start_draining)

    def start_draining(self) -> None:
        """Tell load balancers and streams first, and stop listening after a delay."""
        if not self.app.state.service.draining.is_set():
            self.app.state.service.draining.set()
            _log.info("draining: no new work is accepted, streams are asked to reconnect elsewhere")
            self._draining = asyncio.ensure_future(self._stop_after_delay())

    async def _stop_after_delay(self) -> None:
        await asyncio.sleep(self.drain_delay)
        self.should_exit = True


def listen(host: str, port: int, *, shared: bool = False) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one. A ``shared`` port serves several processes of one user."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host.strip("[]"), port))
    except OSError:
        listener.close()
        raise
    listener.listen(2048)
    listener.set_inheritable(True)
    return listener


def tune_garbage_collector() -> None:
    """Leave out what is there now, which lives as long as the process, and collect less often.

    With the default settings a fifth of the processor time of short requests goes into looking at the same objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def run_server(
    app: Starlette,
    listener: socket.socket,
    *,
    drain_delay: float = 0.0,
    head_seconds: float = HEAD_SECONDS,
    **options: Any,
) -> None:
    """Serve the app on a listening socket until SIGTERM or SIGINT, and return when everything has ended."""
    config = uvicorn.Config(
        app,
        http=limit_heads(head_seconds),
        ws_max_size=MAX_SOCKET_MESSAGE,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=int(DRAIN_TIMEOUT),
        timeout_keep_alive=75,
        limit_concurrency=None,
        **options,
    )
    asyncio.get_running_loop().run_in_executor(None, load_price_list)  # before the first request needs it
    server = DrainingServer(config, app, drain_delay=drain_delay)
    # uvicorn raises the signal again after it has ended, which would kill the process before the runtime is closed.
    handled = {sig: signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM)}
    for sig in handled:
        signal.signal(sig, signal.SIG_IGN)
    try:
        await server.serve([listener])
    finally:
        for sig, handler in handled.items():
            signal.signal(sig, handler)
