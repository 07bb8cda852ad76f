"""The way to a server: opened when it is needed, noticed when it is lost, closed from anywhere."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pydantic import ValidationError

from holdfast.agents.errors import UserError
from holdfast.base.errors import Closed
from holdfast.lifecycle import Deadline
from holdfast.mcp.errors import (
    MCPAnswerBroken,
    MCPCallRefused,
    MCPCallUncertain,
    MCPNotConnected,
    MCPServerError,
    MCPUnavailable,
)

if TYPE_CHECKING:
    from mcp import ClientSession, MCPError

    from holdfast.mcp.link import Link, Sent

T = TypeVar("T")

# How long letting go of a server may take, whatever the server does.
CLOSING = 6.0
# The end of a long error is of no use to anybody.
LONGEST = 500


class Remote(Protocol):
    """What a connection has to know of the server it leads to."""

    client_session_timeout_seconds: float | None
    advice: str

    @property
    def name(self) -> str: ...

    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        """The transport: a context that gives a stream of messages to read and one to write."""

    def forget(self) -> None:
        """What is known about the server may be out of date: it is connected to anew."""

    async def heard(self, message: Any) -> None:
        """Every notification of the server, and what its transport could not read."""

    async def last_words(self) -> str:
        """What is known about the end of the server, if anything."""


class Connection:
    """At most one link at a time, and a new one when that is lost. Any task may open, ask and close."""

    def __init__(self, server: Remote) -> None:
        self.wanted = False
        """Whether it was opened and not closed since; a link that was lost meanwhile is replaced when it is needed."""
        self._server = server
        self._link: Link | None = None
        self._session: ClientSession | None = None
        self._connecting = asyncio.Lock()
        self._closings = 0

    async def open(self) -> None:
        """Connect, unless it is connected. When this raises, it is as it was before."""
        await self._current(self._closings)
        self.wanted = True

    async def close(self) -> None:
        """Let go within some seconds. What is being opened or asked meanwhile fails."""
        self.wanted = False
        self._closings += 1
        # Whoever holds the old lock will find that it was closed; the next may be in another event loop.
        self._connecting = asyncio.Lock()
        link = self._link
        if link is not None:
            await link.close(Deadline.after(CLOSING))
            if self._link is link:
                self._link = self._session = None

    async def ask(
        self, what: str, ask: "Callable[[ClientSession], Awaitable[T]]", *, tool_name: str | None = None
    ) -> T:
        """Ask once. A request that did not get there for want of a connection is asked over a new one."""
        if not self.wanted:
            raise MCPNotConnected(self._server.name)
        link, session = await self._current(self._closings)
        try:
            return await self._ask_over(link, session, what, ask, tool_name)
        except MCPUnavailable:
            if link.alive:
                raise
        if not self.wanted:
            raise MCPNotConnected(self._server.name)
        link, session = await self._current(self._closings)
        return await self._ask_over(link, session, what, ask, tool_name)

    async def _ask_over(
        self,
        link: "Link",
        session: "ClientSession",
        what: str,
        ask: "Callable[[ClientSession], Awaitable[T]]",
        tool_name: str | None,
    ) -> T:
        from mcp import MCPError

        from holdfast.mcp.link import counted

        name, limit = self._server.name, self._server.client_session_timeout_seconds
        try:
            with counted() as sent:
                async with asyncio.timeout(limit) as clock:
                    return await ask(session)
        except TimeoutError:
            if not clock.expired():
                raise
            late = f"did not answer within {limit:g} seconds"
            raise MCPCallUncertain(name, what, late, tool_name=tool_name) from None
        except MCPError as error:
            raise await self._explained(error, sent, link, what, tool_name) from error
        except (RuntimeError, ValueError) as error:  # the library's words for what it cannot write or read
            if isinstance(error, ValueError) and not sent.requests:
                raise UserError(f"the MCP server {name!r} cannot be asked to {what}: {brief(error)}") from error
            raise MCPAnswerBroken(name, what, brief(error), tool_name=tool_name) from error

    async def _explained(
        self, error: "MCPError", sent: "Sent", link: "Link", what: str, tool_name: str | None
    ) -> MCPServerError:
        from holdfast.mcp.link import fault_of

        name, fault = self._server.name, fault_of(error, sent)
        if fault == "lost":
            link.end()
        if fault in ("lost", "unsent"):
            return MCPUnavailable(name, error.message, advice=self._server.advice, tool_name=tool_name)
        if fault == "cut":
            why = await self._server.last_words() or error.message
            return MCPCallUncertain(name, what, f"was lost before it answered ({why})", tool_name=tool_name)
        if fault == "broken":
            return MCPAnswerBroken(name, what, error.message.partition("\n")[0], tool_name=tool_name)
        return MCPCallRefused(name, what, error.message, tool_name=tool_name)

    async def _current(self, closings: int) -> "tuple[Link, ClientSession]":
        """The link there is, or a new one when the old one is gone; not if it was closed since ``closings``."""
        async with self._connecting:
            self._check(closings)
            if self._link is not None:
                if self._session is not None and self._link.alive:
                    return self._link, self._session
                await self._link.close(Deadline.after(CLOSING))
                self._check(closings)
            return await self._connect()

    def _check(self, closings: int) -> None:
        if closings != self._closings:
            raise MCPNotConnected(self._server.name)

    async def _connect(self) -> "tuple[Link, ClientSession]":
        from holdfast.mcp.link import Link, leaf

        server, limit = self._server, self._server.client_session_timeout_seconds
        server.forget()
        self._session = None
        self._link = link = Link(server.create_streams, name=server.name, on_message=server.heard)
        try:
            async with asyncio.timeout(limit) as clock:
                session = await link.open()
        except Closed:
            raise MCPNotConnected(server.name) from None
        except TimeoutError as late:
            why = f"it did not answer within {limit:g} seconds" if clock.expired() else str(late)
            raise MCPUnavailable(server.name, why, advice=server.advice) from late
        except Exception as error:  # noqa: BLE001 - whatever a transport raises
            cause = leaf(error)
            status = status_of(cause)
            why = status or await server.last_words() or brief(cause)
            # The words of an error about a status are an address, and that may have a password in it.
            raise MCPUnavailable(server.name, why, advice=server.advice) from (None if status else cause)
        self._session = session
        return link, session


def status_of(error: BaseException) -> str | None:
    """The status that a server over HTTP answered with, if that is what the error is about."""
    response = getattr(error, "response", None)
    return None if response is None else f"HTTP {response.status_code} {response.reason_phrase}"


def brief(error: BaseException) -> str:
    """An error in a line or two. What does not fit a schema is named by its place, and not quoted."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place}: {first['msg']}" if place else first["msg"]
    text = str(error) or repr(error)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
