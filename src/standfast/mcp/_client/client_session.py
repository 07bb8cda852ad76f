"""One connection to a server: a transport and an MCP client session over it, held open by its own task.

This module imports the ``mcp`` library; :mod:`standfast.mcp._client.connection` imports it when a server is connected.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import anyio
from mcp import ClientSession, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    PARSE_ERROR,
    ErrorData,
    Implementation,
    InitializeResult,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
)

from standfast import __version__
from standfast.base.log import get_logger
from standfast.lifecycle import CloseTimeout, Deadline, Owner
from standfast.mcp._client.message_limits import MessageRefused, check_part_count

_log = get_logger("standfast.mcp")

MAX_SERVER_REQUESTS = 16
"""Requests of the server that are answered at a time. It is not read while there are more."""

# Marks error responses that standfast creates in place of the server's. The value is a RequestFault.
FAULT_KEY = "standfast-fault"


class RequestFault(StrEnum):
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
        self.initialize_result: InitializeResult | None = None

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
            requests = _ServerRequests()
            async with ClientSession(
                _GuardedReceiveStream(read, requests, self.mark_lost),
                _CountingSendStream(write, requests),
                message_handler=self._on_message,
                client_info=Implementation(name="standfast", version=__version__),
            ) as session:
                self.initialize_result = await session.initialize()
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


class _ServerRequests:
    """The requests of the server that are not answered yet."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._answered = asyncio.Event()

    async def add(self, request_id: Any) -> None:
        """Note a request, and wait while there are too many."""
        self._open[str(request_id)] += 1
        while self._open.total() >= MAX_SERVER_REQUESTS:
            self._answered.clear()
            await self._answered.wait()

    def discard(self, request_id: Any) -> None:
        """Note that a request was answered or withdrawn."""
        key = str(request_id)
        if self._open[key] > 1:
            self._open[key] -= 1
        else:
            del self._open[key]
        self._answered.set()


class _GuardedReceiveStream(_StreamProxy):
    """Checks messages before the library validates them, and calls ``on_end`` when the stream ends.

    A response that is refused becomes an error. While :data:`MAX_SERVER_REQUESTS` requests of the server are not
    answered, it is not read.
    """

    def __init__(self, stream: Any, requests: _ServerRequests, on_end: Callable[[], None]) -> None:
        super().__init__(stream)
        self._requests, self._on_end = requests, on_end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            while (item := await self._check(await self._stream.__anext__())) is None:
                pass
        except BaseException:
            self._on_end()
            raise
        return item

    async def _check(self, item: Any) -> Any:
        """Return the item, an error in its place, or None if it must be dropped."""
        message = getattr(item, "message", None)
        content = getattr(message, "result", None) or getattr(message, "params", None)
        try:
            check_part_count(content)
        except MessageRefused as refusal:
            if not isinstance(message, JSONRPCResponse):
                _log.warning("an MCP server sent %s; it is ignored", refusal)
                return None
            error = ErrorData(code=PARSE_ERROR, message=str(refusal))
            return SessionMessage(JSONRPCError(jsonrpc="2.0", id=message.id, error=error))
        if isinstance(message, JSONRPCRequest):
            await self._requests.add(message.id)
        elif getattr(message, "method", None) == "notifications/cancelled" and isinstance(content, dict):
            self._requests.discard(content.get("requestId"))
        return item


class _CountingSendStream(_StreamProxy):
    """Counts the requests that are passed to the transport, and notes which requests of the server are answered."""

    def __init__(self, stream: Any, requests: _ServerRequests) -> None:
        super().__init__(stream)
        self._requests = requests

    async def send(self, item: Any) -> None:
        count = _request_count.get()
        is_request = hasattr(item.message, "id") and hasattr(item.message, "method")
        if count is None or not is_request:
            try:
                await self._stream.send(item)
            finally:
                if hasattr(item.message, "id") and not is_request:
                    self._requests.discard(item.message.id)
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


def classify_fault(error: MCPError, count: RequestCount) -> RequestFault | None:
    """Return what is known about a failed request, or None if the server itself answered with an error.

    If several requests were sent, only the last one is known not to have arrived.
    """
    fault = error.data.get(FAULT_KEY) if isinstance(error.data, dict) else None
    if (
        fault == RequestFault.INVALID_RESPONSE or error.code == PARSE_ERROR
    ):  # the library's code for an unreadable response
        return RequestFault.INVALID_RESPONSE
    if fault is None and error.code != CONNECTION_CLOSED:
        return None
    if count.requests == 0:
        return RequestFault.NOT_SENT
    if count.requests == 1 and fault in (RequestFault.NOT_SENT, RequestFault.SESSION_LOST):
        return RequestFault(fault)
    return RequestFault.INTERRUPTED


def unwrap_exception_group(error: BaseException) -> BaseException:
    """Return the first leaf of an exception group: task groups wrap the actual error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
