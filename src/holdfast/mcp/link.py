"""One connection to a server: a transport and a session over it, held open by a task of its own."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from mcp import ClientSession, MCPError
from mcp.client.session import MessageHandlerFnT
from mcp.types import CONNECTION_CLOSED, Implementation

from holdfast import __version__
from holdfast.lifecycle import CutOff, Deadline, Owner

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
        self._owner = Owner(self._hold, name=f"MCP server {name}")
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
        except Exception:  # noqa: BLE001, S110 - the calls under way have been told
            pass

    @asynccontextmanager
    async def _hold(self) -> AsyncIterator[ClientSession]:
        async with self._streams() as streams:
            read, write, *_ = streams
            async with ClientSession(
                _Watched(read, self.end),
                write,
                message_handler=self._on_message,
                client_info=Implementation(name="holdfast", version=__version__),
            ) as session:
                await session.initialize()
                yield session


class _Watched:
    """A stream of messages that says when it has ended."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream, self._on_end = stream, on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_Watched":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._on_end()
            raise

    async def __aenter__(self) -> "_Watched":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *what_happened: Any) -> Any:
        return await self._stream.__aexit__(*what_happened)


def fault_of(error: MCPError) -> str | None:
    """What is known about a request that was not answered: ``unsent``, ``lost`` (the session) or ``cut``.

    ``None`` when the server did answer.
    """
    if isinstance(error.data, dict) and error.data.get(FAULT) in ("unsent", "lost", "cut"):
        return str(error.data[FAULT])
    return "cut" if error.code == CONNECTION_CLOSED else None


def leaf(error: BaseException) -> BaseException:
    """The error that matters in a group of them: task groups wrap what went wrong inside."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
