"""One connection to a server: a transport and an MCP client session over it, held open by its own task.

This module imports the ``mcp`` library; :mod:`standfast.mcp._client.connection` imports it when a server is connected.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import anyio
from mcp import ClientSession, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.types import CONNECTION_CLOSED, PARSE_ERROR, Implementation

from standfast import __version__
from standfast.base.log import get_logger
from standfast.lifecycle import CloseTimeout, Deadline, Owner

_log = get_logger("standfast.mcp")

# Marks error responses that standfast creates in place of the server's. The value is a Fault.
FAULT_KEY = "standfast-fault"


class Fault(StrEnum):
    """Why a request has no valid response from the server."""

    NOT_SENT = "not-sent"
    """The request did not reach the server."""
    SESSION_LOST = "session-lost"
    """The server rejected the request because it no longer knows the session."""
    INTERRUPTED = "interrupted"
    """The connection ended before the response arrived; the request may have had an effect."""
    INVALID_RESPONSE = "invalid-response"
    """The response violates the protocol; the request may have had an effect."""


class MCPConnection:
    """A connection that is opened once and can be closed by any task.

    Its own task enters and leaves the task groups of the transport.
    """

    def __init__(
        self,
        open_streams: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        name: str,
        on_message: MessageHandlerFnT,
    ) -> None:
        self._open_streams, self._on_message = open_streams, on_message
        self._name = f"MCP server {name}"
        self._owner = Owner(self._open_session, name=self._name)
        self._lost = False

    @property
    def is_alive(self) -> bool:
        """True as long as requests can be sent, as far as is known."""
        return not (self._lost or self._owner.closing or self._owner.closed)

    async def open(self) -> ClientSession:
        """Connect and perform the MCP handshake. When this raises, nothing is left open."""
        return await self._owner.start()

    def mark_lost(self) -> None:
        """Record that the server is gone or has forgotten the session, so no further requests are sent."""
        self._lost = True

    async def close(self, deadline: Deadline) -> None:
        """Close the connection. Raises only if something is still running after the deadline."""
        try:
            await self._owner.close(deadline=deadline)
        except CloseTimeout as timeout:
            if timeout.still_running:
                raise
        except Exception as error:  # noqa: BLE001 - pending calls have already raised it
            _log.debug("%s: the connection had ended with %s", self._name, type(error).__name__)

    @asynccontextmanager
    async def _open_session(self) -> AsyncIterator[ClientSession]:
        async with self._open_streams() as streams:
            read, write, *_ = streams
            async with ClientSession(
                _ObservedReceiveStream(read, self.mark_lost),
                _CountingSendStream(write),
                message_handler=self._on_message,
                client_info=Implementation(name="standfast", version=__version__),
            ) as session:
                await session.initialize()
                yield session


class _StreamProxy:
    """A message stream that forwards everything to another one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc_info: Any) -> Any:
        return await self._stream.__aexit__(*exc_info)


class _ObservedReceiveStream(_StreamProxy):
    """Calls ``on_end`` when the stream ends."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        super().__init__(stream)
        self._on_end = on_end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise


class _CountingSendStream(_StreamProxy):
    """Counts the requests that are passed to the transport."""

    async def send(self, item: Any) -> None:
        count = _request_count.get()
        is_request = hasattr(item.message, "id") and hasattr(item.message, "method")
        if count is None or not is_request:
            await self._stream.send(item)
            return
        # A message that cannot be encoded (a lone surrogate, for example) would end the transport with all its calls,
        # so that is detected here.
        item.message.model_dump_json(by_alias=True, exclude_unset=True)
        count.requests += 1  # counted first, because a cancelled send may have taken place
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            count.requests -= 1
            raise


@dataclass
class RequestCount:
    """The number of requests that were passed to a transport inside a :func:`count_requests` block."""

    requests: int = 0


_request_count: ContextVar[RequestCount | None] = ContextVar("standfast_mcp_sent", default=None)


@contextmanager
def count_requests() -> Iterator[RequestCount]:
    """Count the requests that the current task sends."""
    count = RequestCount()
    token = _request_count.set(count)
    try:
        yield count
    finally:
        _request_count.reset(token)


def classify_fault(error: MCPError, count: RequestCount) -> Fault | None:
    """Return what is known about a failed request, or None if the server itself answered with an error.

    If several requests were sent, only the last one is known not to have arrived.
    """
    fault = error.data.get(FAULT_KEY) if isinstance(error.data, dict) else None
    if fault == Fault.INVALID_RESPONSE or error.code == PARSE_ERROR:  # the library's code for an unreadable response
        return Fault.INVALID_RESPONSE
    if fault is None and error.code != CONNECTION_CLOSED:
        return None
    if count.requests == 0:
        return Fault.NOT_SENT
    if count.requests == 1 and fault in (Fault.NOT_SENT, Fault.SESSION_LOST):
        return Fault(fault)
    return Fault.INTERRUPTED


def unwrap_exception_group(error: BaseException) -> BaseException:
    """Return the first leaf of an exception group: task groups wrap the actual error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
