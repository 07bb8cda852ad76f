"""One connection to a server: a transport and a session over it, held open by a task of its own."""

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import anyio
from mcp import ClientSession, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.types import CONNECTION_CLOSED, PARSE_ERROR, Implementation

from holdfast import __version__
from holdfast.lifecycle import CutOff, Deadline, Owner

_log = logging.getLogger("holdfast.mcp")

# Marks errors that we put in the place of a server's answer, with what is known about the request.
FAULT = "holdfast-fault"


class Link:
    """Open once, close from anywhere. A transport's task groups are entered and left by the link's own task."""

    def __init__(
        self,
        streams: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        name: str,
        on_message: MessageHandlerFnT,
    ) -> None:
        self._streams, self._on_message = streams, on_message
        self._name = f"MCP server {name}"
        self._owner = Owner(self._hold, name=self._name)
        self._ended = False

    @property
    def alive(self) -> bool:
        """Whether requests can be sent, as far as anybody has noticed."""
        return not (self._ended or self._owner.closing or self._owner.closed)

    async def open(self) -> ClientSession:
        """Connect and shake hands. When this raises, nothing is left open."""
        return await self._owner.start()

    def end(self) -> None:
        """Send nothing more: the other side is gone, or does not know this session any more."""
        self._ended = True

    async def close(self, deadline: Deadline) -> None:
        """Let go. How a connection came to its end is of no interest any more; what outlives the deadline is."""
        try:
            await self._owner.close(deadline=deadline)
        except CutOff as late:
            if late.left:
                raise
        except Exception as error:  # noqa: BLE001 - the calls under way have been told
            _log.debug("%s had ended with %s", self._name, type(error).__name__)

    @asynccontextmanager
    async def _hold(self) -> AsyncIterator[ClientSession]:
        async with self._streams() as streams:
            read, write, *_ = streams
            async with ClientSession(
                _Incoming(read, self.end),
                _Outgoing(write),
                message_handler=self._on_message,
                client_info=Implementation(name="holdfast", version=__version__),
            ) as session:
                await session.initialize()
                yield session


class _Stream:
    """A stream of messages, passed on as it is."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *what_happened: Any) -> Any:
        return await self._stream.__aexit__(*what_happened)


class _Incoming(_Stream):
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


class _Outgoing(_Stream):
    """Counts the requests that a transport has taken."""

    async def send(self, item: Any) -> None:
        sent = _sent.get()
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
class Sent:
    """How many requests were handed to a transport within a block."""

    requests: int = 0


_sent: ContextVar[Sent | None] = ContextVar("holdfast_mcp_sent", default=None)


@contextmanager
def counted() -> Iterator[Sent]:
    """Count the requests that this task sends."""
    sent = Sent()
    before = _sent.set(sent)
    try:
        yield sent
    finally:
        _sent.reset(before)


def fault_of(error: MCPError, sent: Sent) -> str | None:
    """What is known about what was asked and not answered: ``unsent``, ``lost`` (the session), ``cut`` or ``broken``.

    ``None`` when the server did answer. When several requests were sent, only the last is known not to have arrived.
    """
    fault = error.data.get(FAULT) if isinstance(error.data, dict) else None
    if fault == "broken" or error.code == PARSE_ERROR:  # so the library calls an answer that it cannot read
        return "broken"
    if fault is None and error.code != CONNECTION_CLOSED:
        return None
    if sent.requests == 0:
        return "unsent"
    return fault if sent.requests == 1 and fault in ("unsent", "lost") else "cut"


def leaf(error: BaseException) -> BaseException:
    """The error that matters in a group of them: task groups wrap what went wrong inside."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
