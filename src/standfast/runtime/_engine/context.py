"""The state that all parts of one runtime share: the backend with retries, the agents and the subscriptions."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.agents.agent import Agent
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.graph import AgentGraph
from standfast.base.errors import InvalidInput, NotFound, StoreUnavailable, Unsupported
from standfast.base.ids import new_id, validate_name
from standfast.base.log import get_logger
from standfast.base.time import Backoff, Clock
from standfast.base.validation import is_integer
from standfast.history.codec import Codec
from standfast.history.compaction import HistoryCompaction
from standfast.history.reader import PLAIN_CODEC
from standfast.history.session import SessionABC
from standfast.history.stored_session import StoredSession
from standfast.runs.config import RunConfig
from standfast.runtime._engine.budget_book import BudgetBook
from standfast.runtime._engine.leases import LeaseRenewer
from standfast.runtime._engine.run_cipher import RunCipher
from standfast.runtime._engine.subscriptions import APPROVALS, RunSubscriptions
from standfast.store.audit_entries import AuditWriter
from standfast.store.backend import Backend
from standfast.store.operations import Op, OpResult, SaveApproval
from standfast.store.records import ApprovalRecord, RunRecord

if TYPE_CHECKING:
    from standfast.runtime._engine.webhook_outbox import WebhookOutbox
    from standfast.workspaces.executor import WorkspaceExecutor

MAX_NAME_LENGTH = 64
OLD_QUEUE = ""
"""The queue of runs that were stored before there were queues; every runtime reads it."""
T = TypeVar("T")
_log = get_logger(__name__)


def name_queue(agent: str, cipher: RunCipher | None = None) -> str:
    """Return the queue of runs that start with the agent. With encryption it does not show the agent's name."""
    return list_queue_names(agent, cipher)[0]


def list_queue_names(agent: str, cipher: RunCipher | None = None) -> Sequence[str]:
    """Return the names of the queue of an agent; it has one for each encryption key."""
    if cipher is not None:
        return cipher.make_queue_names(agent)
    return [agent if len(agent) <= MAX_NAME_LENGTH else hashlib.sha256(agent.encode()).hexdigest()]


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
    """A backend that retries reads, adds deliveries of webhooks, and notifies followers of approvals.

    Writes are not retried: only their caller knows whether that is safe.
    """

    def __init__(
        self,
        backend: Backend,
        shutdown: ShutdownFlag,
        subscriptions: RunSubscriptions,
        outbox: "WebhookOutbox | None" = None,
    ) -> None:
        self._backend, self._shutdown, self._subscriptions = backend, shutdown, subscriptions
        self._outbox = outbox
        self.indexes_words, self.location = backend.indexes_words, backend.location

    async def commit(self, *ops: Op) -> list[OpResult]:
        deliveries = [] if self._outbox is None else await self._outbox.build_ops(ops)
        results = (await self._backend.commit(*ops, *deliveries))[: len(ops)]
        if deliveries and self._outbox is not None:
            self._outbox.on_added()
        if SaveApproval in map(type, ops):
            self._subscriptions.notify_written(APPROVALS)
        return results

    async def close(self) -> None:
        await self._backend.close()

    def __getattr__(self, name: str) -> Any:
        read = getattr(self._backend, name)
        if not callable(read):
            return read

        async def retry_read(*args: Any, **kwargs: Any) -> Any:
            return await retry_unavailable(lambda: read(*args, **kwargs), self._shutdown)

        setattr(self, name, retry_read)
        return retry_read


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
    is_clock_set: bool = False
    runtime_id: str = field(default_factory=lambda: new_id("runtime"))
    """Its name as the owner of leases."""
    subscriptions: RunSubscriptions = field(default_factory=RunSubscriptions)
    shutdown: ShutdownFlag = field(default_factory=ShutdownFlag)
    codec: Codec = PLAIN_CODEC
    """Of the sessions."""
    compaction: HistoryCompaction | None = None
    """Of the sessions, before a run reads its history."""
    cipher: RunCipher | None = None
    """Of the runs; ``None`` without encryption."""
    stored: Backend | None = None
    """The backend below the encryption of the runs."""
    live: bool = False
    """Whether every model response is streamed, so that a reader that joins late gets it from its beginning."""
    max_runs: int | None = None
    """How many runs this runtime executes at once."""
    recovery_paused_until: float = 0.0
    """On the monotonic clock. Set when the store's clock has jumped ahead, until live owners have renewed their leases.
    """
    outbox: "WebhookOutbox | None" = None
    """Adds the deliveries of webhooks to commits."""
    audit: AuditWriter = field(default_factory=AuditWriter)
    on_schedule_changed: Callable[[], None] = lambda: None
    """Called when this runtime has changed a schedule."""
    workspace_executors: dict[tuple[tuple[str, Any], ...], "WorkspaceExecutor"] = field(default_factory=dict)
    budgets: BudgetBook = field(init=False)

    def __post_init__(self) -> None:
        self.budgets = BudgetBook(self)

    @property
    def closing(self) -> bool:
        """Whether the runtime is closing: nothing new is started, and no retry waits for an unavailable database."""
        return self.shutdown.closing

    @property
    def poll_interval(self) -> float:
        """Seconds between two checks of what other runtimes have done."""
        return min(self.lease_ttl / 4, 1.0)

    def must_stream(self, run_id: str) -> bool:
        """Return whether the next response of the run is streamed."""
        return self.live or self.subscriptions.has_live_subscribers(run_id)

    async def sync_clock(self) -> None:
        """Set the clock to the store's time, which the leases use too: all processes agree on it."""
        before = time.monotonic()
        now = await self.backend.get_time()
        read_at = (before + time.monotonic()) / 2
        step = now - self.clock() + time.monotonic() - read_at if self.is_clock_set else 0.0
        if step > max(self.lease_ttl / 3, 1.0):
            _log.warning("the clock of the store was set %.1f seconds ahead: recovery waits for leases", step)
            self.recovery_paused_until = time.monotonic() + self.lease_ttl
        self.is_clock_set = True
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

    def name_queue(self, agent: str) -> str:
        """Return the queue in which runs of the agent wait."""
        return name_queue(agent, self.cipher)

    def list_queues(self) -> list[str]:
        """Return the queues of the agents of this runtime."""
        return [name for agent in self.graphs for name in list_queue_names(agent, self.cipher)]

    def get_graph(self, agent: str) -> AgentGraph:
        """Return the graph of the agent with this name, or raise :class:`NotFound`."""
        if isinstance(agent, Agent):
            raise InvalidInput(f"pass the name of the agent, {agent.name!r}, not the Agent object")
        graph = self.graphs.get(agent)
        if graph is None:
            names = ", ".join(map(repr, self.graphs)) or "none"
            raise NotFound("agent", agent, hint=f"; this runtime has {names}")
        return graph

    def open_workspaces(self, **options: Any) -> "WorkspaceExecutor":
        """Return the executor of workspaces with these options; all calls of this runtime share it."""
        from standfast.workspaces.executor import WorkspaceExecutor  # only programs with workers need it

        name = tuple(sorted(options.items()))
        if name not in self.workspace_executors:
            self.workspace_executors[name] = WorkspaceExecutor(
                self.backend, is_encrypted=self.cipher is not None, **options
            )
        return self.workspace_executors[name]

    def open_session(self, session_id: str, *, owner: str | None = None) -> StoredSession:
        return StoredSession(session_id, self.backend, codec=self.codec, owner=owner)


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


async def check_supports_runs(backend: Backend) -> None:
    """Raise :class:`Unsupported` unless the backend can store runs."""
    try:
        await backend.get_run("any")
    except Unsupported as problem:
        raise Unsupported(f"{problem}: open the runtime on SQLite or an SQL database") from None


def validate_options(*, lease: float, approval_ttl: float | None, compaction: object, max_runs: int | None) -> None:
    """Raise :class:`InvalidInput` unless a runtime can be opened with these options."""
    if max_runs is not None and (not is_integer(max_runs) or max_runs < 1):
        raise InvalidInput(f"max_runs must be a positive integer or None, not {max_runs!r}")
    if compaction is not None and not isinstance(compaction, HistoryCompaction):
        raise InvalidInput(f"compaction must be a HistoryCompaction, not {type(compaction).__name__}")
    for name, seconds in (("lease", lease), ("approval_ttl", approval_ttl)):
        if seconds is not None and not seconds > 0:
            raise InvalidInput(f"{name} must be a positive number of seconds, not {seconds!r}")


def validate_session_id(name: object) -> str | None:
    """Return the session id if it can be one, or raise :class:`InvalidInput`."""
    if isinstance(name, SessionABC):
        raise InvalidInput(
            f"a durable run opens its session by itself and cannot use a {type(name).__name__}: pass its session id,"
            f" {name.session_id!r}, for the plain history of that session"
        )
    return None if name is None else validate_name("session id", name)
