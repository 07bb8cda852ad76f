"""A server process: it listens, prints nothing by itself, and drains when it receives a signal to stop."""

import asyncio
import gc
import signal
import socket
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette

from standfast.base.log import get_logger
from standfast.server.request_heads import HEAD_SECONDS, limit_heads

_log = get_logger(__name__)

DRAIN_TIMEOUT = 20.0
"""Seconds that open requests get to end after their streams were closed."""
MAX_SOCKET_MESSAGE = 1_000_000
"""Bytes of one message of a WebSocket."""


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
