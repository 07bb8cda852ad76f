"""A connection to a server that is opened on demand, replaced when it is lost, and can be closed by any task."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import ValidationError

from standfast.agents.errors import UserError
from standfast.base.errors import Closed
from standfast.base.log import hide_secrets
from standfast.lifecycle import Deadline
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
    from mcp.types import InitializeResult

    from standfast.mcp._client.client_session import MCPConnection, RequestCount

T = TypeVar("T")

# The limit for closing a connection, whatever the server does.
CLOSE_TIMEOUT = 6.0
# Longer error messages are truncated.
MAX_ERROR_CHARS = 500


class RemoteServer(Protocol):
    """The server at the other end of a connection."""

    client_session_timeout_seconds: float | None
    hint: str

    @property
    def name(self) -> str: ...

    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        """Return the transport: a context manager whose value is a stream to read and a stream to write messages."""

    def invalidate_state(self) -> None:
        """Discard what is known about the server. Called before it is connected again."""

    async def handle_message(self, message: Any) -> None:
        """Handle a notification of the server, or an exception for a message that the transport could not read."""

    async def describe_exit(self) -> str:
        """Describe how the server ended, or return an empty string."""


class ReconnectingConnection:
    """Holds at most one connection at a time and replaces it when it is lost. Any task may use or close it."""

    def __init__(self, server: RemoteServer) -> None:
        self.is_open = False
        """True between :meth:`open` and :meth:`close`, even if the connection was lost and is not replaced yet."""
        self._server = server
        self._connection: MCPConnection | None = None
        self._session: ClientSession | None = None
        self._connect_lock = asyncio.Lock()
        self._close_count = 0

    @property
    def session(self) -> "ClientSession | None":
        return self._session

    @property
    def initialize_result(self) -> "InitializeResult | None":
        return None if self._connection is None else self._connection.initialize_result

    async def open(self) -> None:
        """Connect, unless it is connected. When this raises, the state is unchanged."""
        await self._get_connection(self._close_count)
        self.is_open = True

    async def close(self) -> None:
        """Close the connection within :data:`CLOSE_TIMEOUT` seconds. Pending requests and connection attempts fail."""
        self.is_open = False
        self._close_count += 1
        # The holder of the old lock will notice the new close count. The next caller may use another event loop.
        self._connect_lock = asyncio.Lock()
        connection = self._connection
        if connection is not None:
            await connection.close(Deadline.after(CLOSE_TIMEOUT))
            if self._connection is connection:
                self._connection = self._session = None

    async def request(
        self, description: str, send: "Callable[[ClientSession], Awaitable[T]]", *, tool_name: str | None = None
    ) -> T:
        """Send a request. If it did not reach the server because the connection was lost, send it over a new one."""
        if not self.is_open:
            raise MCPNotConnected(self._server.name)
        connection, session = await self._get_connection(self._close_count)
        try:
            return await self._request_over(connection, session, description, send, tool_name)
        except MCPUnavailable:
            if connection.is_alive:
                raise
        if not self.is_open:
            raise MCPNotConnected(self._server.name)
        connection, session = await self._get_connection(self._close_count)
        return await self._request_over(connection, session, description, send, tool_name)

    async def _request_over(
        self,
        connection: "MCPConnection",
        session: "ClientSession",
        description: str,
        send: "Callable[[ClientSession], Awaitable[T]]",
        tool_name: str | None,
    ) -> T:
        from mcp import MCPError

        from standfast.mcp._client.client_session import count_requests

        name, timeout = self._server.name, self._server.client_session_timeout_seconds
        try:
            with count_requests() as count:
                async with asyncio.timeout(timeout) as timer:
                    return await send(session)
        except TimeoutError:
            if not timer.expired():
                raise
            outcome = f"did not answer within {timeout:g} seconds"
            raise MCPCallUncertain(name, description, outcome, tool_name=tool_name) from None
        except MCPError as error:
            problem = await self._translate_error(error, count, connection, description, tool_name)
            raise problem from _get_shown_cause(error)
        except (RuntimeError, ValueError) as error:  # the library's errors for messages it cannot write or read
            if isinstance(error, ValueError) and not count.requests:
                raise UserError(
                    f"the request to the MCP server {name!r} to {description} cannot be encoded: {format_error(error)}"
                ) from error
            raise MCPInvalidResponse(name, description, format_error(error), tool_name=tool_name) from _get_shown_cause(
                error
            )

    async def _translate_error(
        self,
        error: "MCPError",
        count: "RequestCount",
        connection: "MCPConnection",
        description: str,
        tool_name: str | None,
    ) -> MCPServerError:
        from standfast.mcp._client.client_session import RequestFault, classify_fault

        name = self._server.name
        match classify_fault(error, count):
            case RequestFault.NOT_SENT | RequestFault.SESSION_LOST as fault:
                if fault is RequestFault.SESSION_LOST:
                    connection.mark_lost()
                return MCPUnavailable(name, error.message, hint=self._server.hint, tool_name=tool_name)
            case RequestFault.INTERRUPTED:
                reason = await self._server.describe_exit() or error.message
                outcome = f"was lost before it answered ({reason})"
                return MCPCallUncertain(name, description, outcome, tool_name=tool_name)
            case RequestFault.INVALID_RESPONSE:
                return MCPInvalidResponse(name, description, error.message.partition("\n")[0], tool_name=tool_name)
        return MCPCallRefused(name, description, error.message, tool_name=tool_name)

    async def _get_connection(self, close_count: int) -> "tuple[MCPConnection, ClientSession]":
        """Return the connection, or a new one if it was lost. Raises if it was closed since ``close_count``."""
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
        from standfast.mcp._client.client_session import MCPConnection, unwrap_exception_group

        server, timeout = self._server, self._server.client_session_timeout_seconds
        server.invalidate_state()
        self._session = None
        self._connection = connection = MCPConnection(
            server.create_streams, name=server.name, on_message=server.handle_message
        )
        try:
            async with asyncio.timeout(timeout) as timer:
                session = await connection.open()
        except Closed:
            raise MCPNotConnected(server.name) from None
        except TimeoutError as error:
            reason = f"it did not answer within {timeout:g} seconds" if timer.expired() else str(error)
            raise MCPUnavailable(server.name, reason, hint=server.hint) from error
        except Exception as error:  # noqa: BLE001 - transports raise anything
            cause = unwrap_exception_group(error)
            status = get_http_status(cause)
            reason = status or await server.describe_exit() or format_error(cause)
            # The message of a status error contains the URL, which may contain a password.
            shown = None if status else _get_shown_cause(cause)
            raise MCPUnavailable(server.name, reason, hint=server.hint) from shown
        self._session = session
        return connection, session


def _get_shown_cause(error: BaseException) -> BaseException | None:
    """Return the error, or None if it has a secret in its text, which tracebacks would show."""
    return error if hide_secrets(str(error)) == str(error) else None


def get_http_status(error: BaseException) -> str | None:
    """Return the HTTP status that caused ``error``, or None if it has another cause."""
    response = getattr(error, "response", None)
    return None if response is None else f"HTTP {response.status_code} {response.reason_phrase}"


def format_error(error: BaseException) -> str:
    """Return a short message. Invalid values are named by their location and not quoted."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        location = ".".join(map(str, first["loc"]))
        return f"{location}: {first['msg']}" if location else first["msg"]
    text = str(error) or repr(error)
    return text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}..."
