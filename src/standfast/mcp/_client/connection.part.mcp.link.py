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
from holdfast.lifecycle import CloseTimeout, Deadline, Owner

_log = logging.getLogger("holdfast.mcp")

# Marks errors that we put in the place of a server's answer, with what is known about the request.
FAULT_KEY = "holdfast-fault"


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
                client_info=Implementation(name="holdfast", version=__version__),
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


_request_count: ContextVar[RequestCount | None] = ContextVar("holdfast_mcp_sent", default=None)


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
