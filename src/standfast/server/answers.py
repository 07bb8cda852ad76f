"""The types of answers that combine several records: overviews, histories, steps of runs, workers, calls."""

from typing import Any

import msgspec

from standfast.base.items import Item
from standfast.history.store import StoredSessionInfo
from standfast.runtime.types import QueueInfo, RunStep, RuntimeInfo
from standfast.store.records import Head, QuarantinedItem


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the store answers, and how many seconds that took."""

    status: str
    seconds: float
    detail: str | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The work that is pending: of the client's owner or, for those who may see it, of all.

    ``runs`` has the number of runs by status, each at most ``counted_up_to``. ``executing``, ``calls`` and ``cells``
    are those of this process. ``pools`` are its worker pools, for operators.
    """

    runs: dict[str, int]
    counted_up_to: int
    approvals: int
    oldest_approval_at: float | None
    executing: int
    calls: int
    cells: int
    store: StoreHealth
    pools: list[dict[str, Any]] | None
    draining: bool


class SessionEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An item at a position of a history. A model does not get it if it has a reason in ``hidden``.

    The reasons are ``call-without-output``, ``output-without-call``, ``reasoning-without-result``, and for one that
    cannot be read, the problem: then it has no item.
    """

    position: int
    item: Item | None
    hidden: str | None
    tokens: int


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A history as it is stored. Of an earlier generation, ``replaced_at`` is when it was rewound or compacted."""

    head: Head
    generation: int
    replaced_at: float | None
    entries: list[SessionEntry]
    tokens: int
    """An estimate, of the items that a model sees."""
    quarantined: list[QuarantinedItem]


class SessionBranch(msgspec.Struct, frozen=True, kw_only=True):
    """A session whose first ``shared`` items are those of another one: one is a fork of the other, or of the same."""

    session_id: str
    shared: int
    head: Head
    updated_at: float


class SessionStats(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a session: its items, their bytes as JSON, and an estimate of their tokens."""

    items: int
    bytes: int
    tokens: int


class ListedSession(StoredSessionInfo, frozen=True, kw_only=True):
    """A session of a listing; its size if the listing was asked for it and the server can read it."""

    stats: SessionStats | None = None


class CompactionPreview(msgspec.Struct, frozen=True, kw_only=True):
    """The items that a compaction would replace, and estimates of tokens. ``can_summarise`` is for the server."""

    head: Head
    replaced: list[Item]
    kept: int
    replaced_tokens: int
    kept_tokens: int
    can_summarise: bool


class RunStepView(msgspec.Struct, frozen=True, kw_only=True):
    """A run after a step, and the variables and files of its Python then."""

    run: RunStep
    workspace: dict[str, Any] | None = None


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """All queues and runtimes of the store, and the pools of this server; one over Ray has its ``nodes``."""

    queues: list[QueueInfo]
    runtimes: list[RuntimeInfo]
    pools: list[dict[str, Any]]


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker of a pool: ``idle``, or ``leased`` to a conversation. Its measures are those of its last heartbeat."""

    pool: int
    place: str
    worker_id: str
    state: str
    created_at: float
    last_used_at: float
    executions: int
    errors: int
    memory_bytes: int
    cpu_percent: float
    variables: int


class SandboxInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The sandbox of the workers of a pool. ``reasons`` say why stronger levels are not available here."""

    pool: int
    level: str | None
    required: str | None
    notes: list[str]
    reasons: dict[str, str]


class CallInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A call under way in this process. ``connected`` is whether its page is there."""

    call_id: str
    agent: str
    session_id: str
    subject: str
    connected: bool
    started_at: float
