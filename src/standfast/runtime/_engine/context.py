"""The state that all parts of one runtime share: the backend with retries, the agents and the subscriptions."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from standfast.agents.agent import Agent
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.graph import AgentGraph
from standfast.base.errors import InvalidInput, NotFound, StoreUnavailable
from standfast.base.ids import new_id, validate_name
from standfast.base.log import get_logger
from standfast.base.time import Backoff, Clock
from standfast.history.codec import Codec
from standfast.history.compaction import Compaction
from standfast.history.reader import PLAIN_CODEC
from standfast.history.stored_session import StoredSession
from standfast.models.interface import as_item
from standfast.runs.config import RunConfig
from standfast.runs.items import RawResponsesStreamEvent, StreamEvent
from standfast.runtime._engine.leases import LeaseRenewer
from standfast.runtime._engine.run_cipher import RunCipher
from standfast.runtime.types import Event
from standfast.store.backend import Backend
from standfast.store.operations import Op, OpResult
from standfast.store.records import ApprovalRecord, RunRecord

if TYPE_CHECKING:
    from standfast.workspaces.keeper import WorkspaceKeeper

T = TypeVar("T")

_log = get_logger(__name__)


class ShutdownFlag:
    """Set when the runtime closes; retries end then."""

    closing = False


async def retry_unavailable(work: Callable[[], Awaitable[T]], shutdown: ShutdownFlag) -> T:
    """Return the result of ``work``, repeating it while the store is unavailable. It must be safe to repeat."""
    backoff = Backoff()
    while True:
        try:
            return await work()
        except StoreUnavailable as problem:
            if shutdown.closing:
                raise
            _log.warning("the store is unavailable, retrying: %s", problem)
            await asyncio.sleep(backoff.next_delay())


class RetryingBackend:
    """A backend that retries reads. Writes are not retried: only their caller knows whether that is safe."""

    def __init__(self, backend: Backend, shutdown: ShutdownFlag) -> None:
        self._backend, self._shutdown = backend, shutdown
        self.indexes_words, self.location = backend.indexes_words, backend.location

    async def commit(self, *ops: Op) -> list[OpResult]:
        return await self._backend.commit(*ops)

    async def close(self) -> None:
        await self._backend.close()

    def __getattr__(self, name: str) -> Any:
        read = getattr(self._backend, name)

        async def retry_read(*args: Any, **kwargs: Any) -> Any:
            return await retry_unavailable(lambda: read(*args, **kwargs), self._shutdown)

        setattr(self, name, retry_read)
        return retry_read


_MAX_PENDING = 4096
"""How many live events a slow reader may be behind before it misses some. A run never waits for a reader."""


EntryMark: TypeAlias = tuple[int, int]


@dataclass(frozen=True)
class JournalUpdate:
    """The journal has new entries; ``upto`` is the mark of the last one, if known."""

    upto: EntryMark | None = None


class RunSubscription:
    """One reader: live events in order, and among them a :class:`JournalUpdate` wherever the journal has grown.

    With ``until_stopped`` it is notified only when the run ends or waits.
    """

    def __init__(self, *, until_stopped: bool) -> None:
        self.until_stopped = until_stopped
        self.pending: deque[Event | JournalUpdate] = deque(maxlen=_MAX_PENDING)
        self._changed = asyncio.Event()

    def put(self, message: Event | JournalUpdate) -> None:
        if isinstance(message, Event) or not self.pending or self.pending[-1] != message:
            self.pending.append(message)
        self._changed.set()

    async def wait(self, *, timeout: float) -> None:
        """Wait until something is pending, at most ``timeout`` seconds."""
        if not self.pending:
            self._changed.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._changed.wait()
            except TimeoutError:
                return


class RunSubscriptions:
    """The subscriptions to all runs."""

    def __init__(self) -> None:
        self._subscriptions: dict[str, set[RunSubscription]] = {}

    @contextmanager
    def subscribe(self, run_id: str, *, until_stopped: bool = False) -> Iterator[RunSubscription]:
        subscription = RunSubscription(until_stopped=until_stopped)
        self._subscriptions.setdefault(run_id, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions[run_id].discard(subscription)
            if not self._subscriptions[run_id]:
                del self._subscriptions[run_id]

    def has_live_subscribers(self, run_id: str) -> bool:
        """Return whether any subscription of the run receives live events."""
        return any(not subscription.until_stopped for subscription in self._subscriptions.get(run_id, ()))

    def notify_written(self, run_id: str, *, upto: EntryMark | None = None, stopped: bool = False) -> None:
        """Notify the subscriptions of new journal entries; ``stopped`` when the run has ended or waits."""
        self._publish(run_id, JournalUpdate(upto), stopped=stopped)

    def publish_live(self, run_id: str, kind: str, data: dict[str, Any]) -> None:
        self._publish(run_id, Event(None, run_id, kind, data, time.time(), live=True))

    async def publish_model_event(self, run_id: str, event: StreamEvent) -> None:
        """Publish an event of the model to the live subscriptions."""
        if isinstance(event, RawResponsesStreamEvent):
            self.publish_live(run_id, "model.delta", as_item(event.data))

    def _publish(self, run_id: str, message: Event | JournalUpdate, *, stopped: bool = False) -> None:
        for subscription in self._subscriptions.get(run_id, ()):
            if stopped or not subscription.until_stopped:
                subscription.put(message)


@dataclass(eq=False)
class RuntimeContext:
    """The backend, the agents of this process, settings, and the name of this runtime among the others."""

    backend: Backend
    graphs: dict[str, AgentGraph]
    lease_renewer: LeaseRenewer
    config: RunConfig
    lease_ttl: float
    approval_ttl: float | None
    clock: Clock = time.time
    """The store's time; corrected by :meth:`sync_clock`."""
    runtime_id: str = field(default_factory=lambda: new_id("runtime"))
    """Its name as the owner of leases."""
    subscriptions: RunSubscriptions = field(default_factory=RunSubscriptions)
    shutdown: ShutdownFlag = field(default_factory=ShutdownFlag)
    codec: Codec = PLAIN_CODEC
    """Of the sessions."""
    compaction: Compaction | None = None
    """Of the sessions, before a run reads its history."""
    cipher: RunCipher | None = None
    """Of the runs; ``None`` without encryption."""
    keepers: dict[tuple[tuple[str, Any], ...], "WorkspaceKeeper"] = field(default_factory=dict)

    @property
    def closing(self) -> bool:
        """Whether the runtime is closing: nothing new is started, and no retry waits for an unavailable database."""
        return self.shutdown.closing

    @property
    def poll_interval(self) -> float:
        """Seconds between two checks of what other runtimes have done."""
        return min(self.lease_ttl / 4, 1.0)

    async def sync_clock(self) -> None:
        """Set the clock to the store's time, which the leases use too: all processes agree on it."""
        before = time.monotonic()
        now = await self.backend.get_time()
        read_at = (before + time.monotonic()) / 2
        self.clock = lambda: now + time.monotonic() - read_at

    async def get_run(self, run_id: str) -> RunRecord:
        record = await self.backend.get_run(validate_name("run id", run_id))
        if record is None:
            raise NotFound("run", run_id)
        return record

    async def get_approval(self, approval_id: str) -> ApprovalRecord:
        record = await self.backend.get_approval(validate_name("approval id", approval_id))
        if record is None or record.run_id.startswith("session:"):  # a standing decision
            raise NotFound("approval", approval_id)
        return record

    def get_graph(self, agent: str) -> AgentGraph:
        """Return the graph of the agent with this name, or raise :class:`NotFound`."""
        if isinstance(agent, Agent):
            raise InvalidInput(f"pass the name of the agent, {agent.name!r}, not the Agent object")
        graph = self.graphs.get(agent)
        if graph is None:
            names = ", ".join(map(repr, self.graphs)) or "none"
            raise NotFound("agent", agent, hint=f"; this runtime has {names}")
        return graph

    def open_workspaces(self, **options: Any) -> "WorkspaceKeeper":
        """Return the keeper of workspaces with these options; all calls of this runtime share it."""
        from standfast.workspaces.keeper import WorkspaceKeeper  # only programs with workers need it

        name = tuple(sorted(options.items()))
        if name not in self.keepers:
            self.keepers[name] = WorkspaceKeeper(self.backend, is_encrypted=self.cipher is not None, **options)
        return self.keepers[name]

    def open_session(self, session_id: str) -> StoredSession:
        return StoredSession(session_id, self.backend, codec=self.codec)


def build_graphs(agents: Sequence[Agent[Any]]) -> dict[str, AgentGraph]:
    """Return the graphs of the agents that runs can start with, by name."""
    graphs: dict[str, AgentGraph] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidDeclaration("Runtime", f"agents must be Agent objects, not {type(agent).__name__}")
        if agent.name in graphs:
            raise InvalidInput(f"two agents are named {agent.name!r}: durable runs find their agent by its name")
        graphs[agent.name] = AgentGraph(agent)
    return graphs
