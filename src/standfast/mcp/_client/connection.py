"""The way to a server: opened when it is needed, noticed when it is lost, closed from anywhere."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import anyio
from mcp import ClientSession, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.types import CONNECTION_CLOSED, PARSE_ERROR, Implementation
from pydantic import ValidationError

from standfast import __version__
from standfast.agents.errors import UserError
from standfast.base.errors import Closed
from standfast.lifecycle import CloseTimeout, Deadline, Owner
from standfast.mcp.errors import (
    MCPCallRefused,
    MCPCallUncertain,
    MCPInvalidResponse,
    MCPNotConnected,
    MCPServerError,
    MCPUnavailable,
)

if TYPE_CHECKING:
    from mcp import ClientSession, MCPError

_log = logging.getLogger("standfast.mcp")

# Marks errors that we put in the place of a server's answer, with what is known about the request.
FAULT_KEY = "standfast-fault"


class MCPConnection:
    """Open once, close from anywhere. A transport's task groups are entered and left by the link's own task."""

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
        """Whether requests can be sent, as far as anybody has noticed."""
        return not (self._lost or self._owner.closing or self._owner.closed)

    async def open(self) -> ClientSession:
        """Connect and shake hands. When this raises, nothing is left open."""
        return await self._owner.start()

    def mark_lost(self) -> None:
        """Send nothing more: the other side is gone, or does not know this session any more."""
        self._lost = True

    async def close(self, deadline: Deadline) -> None:
        """Let go. How a connection came to its end is of no interest any more; what outlives the deadline is."""
        try:
            await self._owner.close(deadline=deadline)
        except CloseTimeout as late:
            if late.still_running:
                raise
        except Exception as error:  # noqa: BLE001 - the calls under way have been told
            _log.debug("%s had ended with %s", self._name, type(error).__name__)

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
    """A stream of messages, passed on as it is."""

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
    """Says when it has ended."""

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
    """Counts the requests that a transport has taken."""

    async def send(self, item: Any) -> None:
        sent = _request_count.get()
        counts = sent is not None and hasattr(item.message, "id") and hasattr(item.message, "method")
        if sent is None or not counts:
            await self._stream.send(item)
            return
        # A transport ends with all its calls when it meets what cannot be written: half a character, for one.
        item.message.model_dump_json(by_alias=True, exclude_unset=True)
        sent.requests += 1  # before, as a cancelled hand-over may have happened
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            sent.requests -= 1
            raise


@dataclass
class RequestCount:
    """How many requests were handed to a transport within a block."""

    requests: int = 0


_request_count: ContextVar[RequestCount | None] = ContextVar("standfast_mcp_sent", default=None)


@contextmanager
def count_requests() -> Iterator[RequestCount]:
    """Count the requests that this task sends."""
    sent = RequestCount()
    before = _request_count.set(sent)
    try:
        yield sent
    finally:
        _request_count.reset(before)


def classify_fault(error: MCPError, sent: RequestCount) -> str | None:
    """What is known about what was asked and not answered: ``unsent``, ``lost`` (the session), ``cut`` or ``broken``.

    ``None`` when the server did answer. When several requests were sent, only the last is known not to have arrived.
    """
    fault = error.data.get(FAULT_KEY) if isinstance(error.data, dict) else None
    if fault == "broken" or error.code == PARSE_ERROR:  # so the library calls an answer that it cannot read
        return "broken"
    if fault is None and error.code != CONNECTION_CLOSED:
        return None
    if sent.requests == 0:
        return "unsent"
    return fault if sent.requests == 1 and fault in ("unsent", "lost") else "cut"


def unwrap_exception_group(error: BaseException) -> BaseException:
    """The error that matters in a group of them: task groups wrap what went wrong inside."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


T = TypeVar("T")

# How long letting go of a server may take, whatever the server does.
CLOSE_TIMEOUT = 6.0
# The end of a long error is of no use to anybody.
MAX_ERROR_CHARS = 500


class RemoteServer(Protocol):
    """What a connection has to know of the server it leads to."""

    client_session_timeout_seconds: float | None
    hint: str

    @property
    def name(self) -> str: ...

    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        """The transport: a context that gives a stream of messages to read and one to write."""

    def invalidate_state(self) -> None:
        """What is known about the server may be out of date: it is connected to anew."""

    async def handle_message(self, message: Any) -> None:
        """Every notification of the server, and what its transport could not read."""

    async def describe_exit(self) -> str:
        """What is known about the end of the server, if anything."""


class ReconnectingConnection:
    """At most one link at a time, and a new one when that is lost. Any task may open, ask and close."""

    def __init__(self, server: RemoteServer) -> None:
        self.is_open = False
        """Whether it was opened and not closed since; a link that was lost meanwhile is replaced when it is needed."""
        self._server = server
        self._connection: MCPConnection | None = None
        self._session: ClientSession | None = None
        self._connect_lock = asyncio.Lock()
        self._close_count = 0

    async def open(self) -> None:
        """Connect, unless it is connected. When this raises, it is as it was before."""
        await self._get_connection(self._close_count)
        self.is_open = True

    async def close(self) -> None:
        """Let go within some seconds. What is being opened or asked meanwhile fails."""
        self.is_open = False
        self._close_count += 1
        # Whoever holds the old lock will find that it was closed; the next may be in another event loop.
        self._connect_lock = asyncio.Lock()
        link = self._connection
        if link is not None:
            await link.close(Deadline.after(CLOSE_TIMEOUT))
            if self._connection is link:
                self._connection = self._session = None

    async def request(
        self, description: str, send: "Callable[[ClientSession], Awaitable[T]]", *, tool_name: str | None = None
    ) -> T:
        """Ask once. A request that did not get there for want of a connection is asked over a new one."""
        if not self.is_open:
            raise MCPNotConnected(self._server.name)
        link, session = await self._get_connection(self._close_count)
        try:
            return await self._request_over(link, session, description, send, tool_name)
        except MCPUnavailable:
            if link.is_alive:
                raise
        if not self.is_open:
            raise MCPNotConnected(self._server.name)
        link, session = await self._get_connection(self._close_count)
        return await self._request_over(link, session, description, send, tool_name)

    async def _request_over(
        self,
        connection: "MCPConnection",
        session: "ClientSession",
        description: str,
        send: "Callable[[ClientSession], Awaitable[T]]",
        tool_name: str | None,
    ) -> T:
        from mcp import MCPError

        from standfast.mcp._client.connection import count_requests

        name, limit = self._server.name, self._server.client_session_timeout_seconds
        try:
            with count_requests() as sent:
                async with asyncio.timeout(limit) as clock:
                    return await send(session)
        except TimeoutError:
            if not clock.expired():
                raise
            late = f"did not answer within {limit:g} seconds"
            raise MCPCallUncertain(name, description, late, tool_name=tool_name) from None
        except MCPError as error:
            raise await self._translate_error(error, sent, connection, description, tool_name) from error
        except (RuntimeError, ValueError) as error:  # the library's words for what it cannot write or read
            if isinstance(error, ValueError) and not sent.requests:
                raise UserError(
                    f"the MCP server {name!r} cannot be asked to {description}: {format_error(error)}"
                ) from error
            raise MCPInvalidResponse(name, description, format_error(error), tool_name=tool_name) from error

    async def _translate_error(
        self,
        error: "MCPError",
        request_count: "RequestCount",
        connection: "MCPConnection",
        description: str,
        tool_name: str | None,
    ) -> MCPServerError:
        from standfast.mcp._client.connection import classify_fault

        name, fault = self._server.name, classify_fault(error, request_count)
        if fault == "lost":
            connection.mark_lost()
        if fault in ("lost", "unsent"):
            return MCPUnavailable(name, error.message, hint=self._server.hint, tool_name=tool_name)
        if fault == "cut":
            why = await self._server.describe_exit() or error.message
            return MCPCallUncertain(name, description, f"was lost before it answered ({why})", tool_name=tool_name)
        if fault == "broken":
            return MCPInvalidResponse(name, description, error.message.partition("\n")[0], tool_name=tool_name)
        return MCPCallRefused(name, description, error.message, tool_name=tool_name)

    async def _get_connection(self, close_count: int) -> "tuple[MCPConnection, ClientSession]":
        """The link there is, or a new one when the old one is gone; not if it was closed since ``closings``."""
        async with self._connect_lock:
            self._check_not_closed(close_count)
            if self._connection is not None:
                if self._session is not None and self._connection.is_alive:
                    return self._connection, self._session
                await self._connection.close(Deadline.after(CLOSE_TIMEOUT))
                self._check_not_closed(close_count)
            return await self._connect()

    def _check_not_closed(self, close_count: int) -> None:
        if close_count != self._close_count:
            raise MCPNotConnected(self._server.name)

    async def _connect(self) -> "tuple[MCPConnection, ClientSession]":
        from standfast.mcp._client.connection import MCPConnection, unwrap_exception_group

        server, limit = self._server, self._server.client_session_timeout_seconds
        server.invalidate_state()
        self._session = None
        self._connection = link = MCPConnection(
            server.create_streams, name=server.name, on_message=server.handle_message
        )
        try:
            async with asyncio.timeout(limit) as clock:
                session = await link.open()
        except Closed:
            raise MCPNotConnected(server.name) from None
        except TimeoutError as late:
            why = f"it did not answer within {limit:g} seconds" if clock.expired() else str(late)
            raise MCPUnavailable(server.name, why, hint=server.hint) from late
        except Exception as error:  # noqa: BLE001 - whatever a transport raises
            cause = unwrap_exception_group(error)
            status = get_http_status(cause)
            why = status or await server.describe_exit() or format_error(cause)
            # The words of an error about a status are an address, and that may have a password in it.
            raise MCPUnavailable(server.name, why, hint=server.hint) from (None if status else cause)
        self._session = session
        return link, session


def get_http_status(error: BaseException) -> str | None:
    """The status that a server over HTTP answered with, if that is what the error is about."""
    response = getattr(error, "response", None)
    return None if response is None else f"HTTP {response.status_code} {response.reason_phrase}"


def format_error(error: BaseException) -> str:
    """An error in a line or two. What does not fit a schema is named by its place, and not quoted."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"]
    text = str(error) or repr(error)
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}..."
