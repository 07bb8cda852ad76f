"""The public data types of durable runs."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import msgspec

from standfast.base.items import Item
from standfast.base.usage import Usage
from standfast.runs.core.state import PersistedStruct

RunStatus: TypeAlias = Literal["queued", "running", "waiting", "completed", "failed", "cancelled"]
CancelMode: TypeAlias = Literal["after_turn", "immediate"]
OnBusy: TypeAlias = Literal["enqueue", "reject", "interrupt", "rollback"]
BudgetPeriod: TypeAlias = Literal["day", "month", "ever"]
Verdict: TypeAlias = Literal["approve", "reject", "done", "again"]
ApprovalStatus: TypeAlias = Literal["pending", "approved", "rejected", "done", "expired", "withdrawn"]


class RunProblem(PersistedStruct, frozen=True):
    """Why a run failed, or why it cannot continue."""

    code: str
    """A stable name of the problem, such as ``tool-missing``."""
    message: str
    """What happened, and what to do."""
    type: str | None = None
    """The class of the exception, with its module."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one agent that no runtime executes at the moment and any may execute.

    ``ready`` of them wait for a runtime, the oldest for ``oldest_wait`` seconds, and ``behind`` for another run of
    their session. ``agent`` is unknown for encrypted runs of agents that this runtime does not have. ``is_served`` is
    False if no live runtime is known to have it; one that was opened without ``max_runs`` is known after a third of its
    lease.
    """

    queue: str
    agent: str | None
    ready: int = 0
    behind: int = 0
    oldest_wait: float = 0.0
    is_served: bool = False


NOTICE_KIND = "runtime"
"""Of the documents in which runtimes announce themselves."""


class RuntimeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime that executes runs, as it described itself ``age`` seconds ago."""

    runtime_id: str
    """Its id, by which events of runs name it."""
    host: str
    """The name of its machine."""
    process: int
    """The id of its process."""
    executing: int
    """How many runs it executes."""
    max_runs: int | None
    """How many runs it executes at most. None: no limit."""
    is_alive: bool
    """Whether it has described itself lately."""
    age: float
    """Seconds since it described itself."""


class Approval(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to approve a tool call, and the decision once there is one. ``digest`` is the SHA-256 of ``arguments``.

    An approval of kind ``uncertain`` is about a call that was in progress when its process died: it may have happened.
    """

    id: str
    """The id, with which it is decided."""
    kind: Literal["approval", "uncertain"]
    """``approval`` before a call; ``uncertain`` after one that may have taken effect."""
    status: ApprovalStatus
    """``pending`` until it is decided, expires, or is withdrawn because the run ended."""
    run_id: str
    """The run that waits."""
    session_id: str | None
    """The session of the run."""
    agent: str
    """The name of the agent that makes the call."""
    tool: str
    """The name of the tool."""
    call_id: str
    """The id of the call, as the model gave it."""
    arguments: str
    """The arguments of the call as JSON."""
    digest: str
    """The SHA-256 of ``arguments``."""
    requested_at: float
    """When it was requested, in seconds since 1970."""
    idempotency_key: str = ""
    """The tool's ``ctx.idempotency_key``: use it to find out whether an uncertain call had an effect."""
    expires_at: float | None = None
    """When it expires, in seconds since 1970. None: never."""
    decided_by: str | None = None
    """Who decided."""
    decided_at: float | None = None
    """When it was decided, in seconds since 1970."""
    message: str | None = None
    """The note of a decision; of a rejection, the message for the model."""
    edited: str | None = None
    """The arguments with which the call was approved, if a person edited them."""
    output: str | None = None
    """The output of an uncertain call that was found done."""
    always: bool = False
    """Whether the decision applies to all later calls of the tool in the session."""
    agent_path: str = "root"
    """The way from the root agent to the agent."""
    tool_key: tuple[str, ...] = ()
    """The key of the tool: kind, namespace and name."""
    route: tuple[str, ...] = ()
    """The ids of the calls that lead to a nested run."""
    locked: bool = False
    """Whether it is encrypted and this runtime cannot read it: only its ids, status and times are known."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Runs of an agent that start at given times; see :class:`Schedules`. Times are in seconds since 1970."""

    name: str
    """The name, under which it is replaced."""
    agent: str
    """The name of the agent."""
    input: str | list[Item]
    """The input of each run."""
    cron: str | None = None
    """When it comes due, in five fields."""
    every: float | None = None
    """Or: the seconds from one time to the next."""
    timezone: str = "UTC"
    """The time zone in which ``cron`` is read."""
    session_id: str | None = None
    """The session that all its runs share."""
    owner: str | None = None
    """The owner of the sessions of its runs."""
    max_turns: int | None = None
    """The most turns of a run."""
    overlap: bool = False
    """Whether a run starts while the last one has not ended."""
    created_at: float
    """When it was made."""
    next_at: float | None = None
    """When the next run starts. None: it is paused."""
    last_at: float | None = None
    """The time for which the last run was started."""
    last_run_id: str | None = None
    """The last run."""
    skipped: int = 0
    """How many times were skipped because the last run had not ended, since one was not."""
    problem: RunProblem | None = None
    """Why no run could be started at the last time."""
    locked: bool = False
    """Whether it is encrypted and this runtime cannot read it: only its name is known."""

    @property
    def is_paused(self) -> bool:
        """Whether no runs are started."""
        return self.next_at is None


class Budget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What runs may spend in a period; see :class:`Budgets`."""

    name: str
    """The name, under which it is replaced."""
    tokens: int | None = None
    """The most tokens, read and written ones together. None: any number."""
    cost: float | None = None
    """The most US dollars. None: any sum."""
    per: BudgetPeriod = "month"
    """The period, in UTC, after which it is full again."""
    owner: str | None = None
    """The owner of the sessions whose runs it is for. None: all runs, also those without a session."""
    agent: str | None = None
    """The agent that the runs start with. None: all."""
    created_at: float
    """When it was made, in seconds since 1970."""
    spent: "Spending" = msgspec.field(default_factory=lambda: Spending())
    """What was spent in the current period."""
    locked: bool = False
    """Whether it is encrypted and this runtime cannot read it: only its name is known."""

    @property
    def is_used_up(self) -> bool:
        """Whether no run that it is for asks a model again in this period."""
        return (self.tokens is not None and self.spent.tokens >= self.tokens) or (
            self.cost is not None and self.spent.cost >= self.cost
        )


class Spending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What responses of models have cost."""

    tokens: int = 0
    """Tokens read and written."""
    cost: float = 0.0
    """US dollars, as far as the prices are known."""
    unpriced_tokens: int = 0
    """Those of the tokens whose price is not known."""

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(
            tokens=self.tokens + other.tokens,
            cost=self.cost + other.cost,
            unpriced_tokens=self.unpriced_tokens + other.unpriced_tokens,
        )


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A server that is notified of events; see :class:`Webhooks`."""

    id: str
    """Its id."""
    url: str | None
    """Where requests are sent. None: it is encrypted and this runtime cannot read it."""
    events: list[str]
    """The types of the events."""
    private: bool
    """Whether the server may be in a network that is not the Internet."""
    created_at: float
    """When it was made, in seconds since 1970."""


class NewWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook that was just made, with the secret that signs its requests."""

    webhook: Webhook
    """The webhook."""
    secret: str
    """Its secret, which is shown this once."""


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """An event for a webhook, and how its last attempt ended. Times are in seconds since 1970."""

    id: str
    """The id of the message, which each attempt has as ``webhook-id``."""
    webhook_id: str
    """The webhook."""
    event: str
    """The type of the event."""
    body: str
    """What is sent, as JSON."""
    created_at: float
    """When the event happened."""
    status: Literal["pending", "delivered", "failed"] = "pending"
    """``failed`` after the last attempt."""
    attempts: int = 0
    """How often it was sent."""
    next_at: float | None = None
    """When it is sent next."""
    response_status: int | None = None
    """The HTTP status of the last answer."""
    problem: str | None = None
    """Why the last attempt failed."""


@dataclass(frozen=True)
class ApprovalChange:
    """An approval after it was requested, decided, withdrawn or has expired; ``approval.status`` says which.

    Pass ``cursor`` to :meth:`Runtime.follow_approvals` to continue after it.
    """

    approval: Approval
    cursor: str


@dataclass(frozen=True)
class Event:
    """Something that happened to a run. ``seq`` counts from 1 without gaps.

    Events of a streaming model response are ``live``: they have no ``seq`` and are not stored. Their ``position`` is
    their place among the live events, see :meth:`RunHandle.events`. A live event of type ``model.gap`` stands for
    ``data["missed"]`` others that did not reach the reader, or for an unknown number if that is None; the complete
    response follows as always.
    """

    seq: int | None
    """The number of the event in its run, from 1. None for live events."""
    run_id: str
    """The run."""
    type: str
    """What happened, such as ``model.answered``."""
    data: dict[str, Any]
    """The facts, by type."""
    at: float
    """When it happened, in seconds since 1970."""
    live: bool = False
    """Whether it is part of a response that is being streamed."""
    position: str | None = None
    """The place of a live event; pass it to continue after that event."""


@dataclass(frozen=True)
class RunInfo:
    """A run in a listing. ``steps`` is the number of its events so far, ``reason`` why it failed or is blocked.

    A ``locked`` run is encrypted and cannot be read by this runtime: ``agent`` is empty, ``reason`` and ``key`` are
    unknown.
    """

    run_id: str
    """The id of the run."""
    agent: str
    """The name of the agent it started with."""
    session_id: str | None
    """Its session, if it has one."""
    status: RunStatus
    """What it does now."""
    reason: RunProblem | None
    """Why it failed or is blocked."""
    key: str | None
    """The idempotency key it was started with: the same key returns the same run."""
    parent: str | None
    """The run it was forked from."""
    steps: int
    """The number of its events so far."""
    created_at: float
    """When it was started, in seconds since 1970."""
    updated_at: float
    """When its status changed last, in seconds since 1970."""
    locked: bool = False
    """Whether it is encrypted and this runtime cannot read it."""


class StepItem(msgspec.Struct, frozen=True):
    """An item of a run: what it is, which agent made it, and whether it is hidden from the session."""

    item: Item
    """The item."""
    kind: str
    """What the item is, such as a message or a call."""
    agent: str = "root"
    """The path of the agent that made it."""
    hidden: bool = False
    """Whether it is kept out of the session."""


class StepCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call of the turn that a run was in, with its status; ``route`` leads to the nested run that made it."""

    call_id: str
    """The id of the call, as the model gave it."""
    tool: str
    """The name of the tool."""
    status: str
    """What has become of the call."""
    arguments: str
    """The arguments of the call as JSON."""
    approval_id: str | None = None
    """The id of the approval that it waited for."""
    route: tuple[str, ...] = ()
    """The ids of the calls that lead to the nested run that made it."""


class RunStep(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it was after one of its steps.

    ``items`` are its own; those that its session had before are the first ``history_length`` of the generation
    ``history_generation``. ``workspace`` is the key of its variables and files, which had ``workspace_version``.
    """

    run_id: str
    """The id of the run."""
    step: int
    """The step: the number of an event of the run."""
    steps: int
    """The number of events of the run."""
    agent: str
    """The name of the agent at work."""
    agent_path: str
    """The agent at work, as its path from the agent that the run started with."""
    turn: int
    """The turn that the run was in."""
    input: str | list[Item]
    """The input of the run."""
    items: list[StepItem]
    """The run's own items so far."""
    calls: list[StepCall]
    """The tool calls of the turn."""
    context: dict[str, Any] | None
    """The context of the run, if it is saved."""
    usage: dict[str, Any]
    """The requests and tokens of the run so far."""
    history_length: int
    """How many items its session had before the run."""
    history_generation: int
    """The generation of the session with those items."""
    workspace: str | None
    """The key of the run's variables and files, if it has any."""
    workspace_version: int
    """The version of the variables and files."""


@dataclass(frozen=True)
class PruneReport:
    """The ids of the ``deleted`` runs, and how many ended runs were ``kept``.

    Those in ``shared`` were to be deleted, but a run that is kept was forked from them and shares their journals.
    """

    deleted: tuple[str, ...]
    kept: int
    shared: tuple[str, ...] = ()


@dataclass(frozen=True)
class RekeyReport:
    """What was encrypted again with the first key: the ids of runs, the number of approvals, the keys of workspaces.

    ``failed`` has the ids of those that could not be read, with the reasons; they are unchanged.
    """

    runs: tuple[str, ...]
    approvals: int
    workspaces: tuple[str, ...]
    failed: dict[str, str]


@dataclass(frozen=True)
class RunOutcome:
    """The result of a run, or what it waits for: ``approvals``, or the problem in ``error``."""

    run_id: str
    """The id of the run."""
    status: RunStatus
    """``completed``, ``failed``, ``cancelled``, or ``waiting``."""
    final_output: Any = None
    """The output of a completed run, in the output type of its agent."""
    approvals: tuple[Approval, ...] = ()
    """What it waits for."""
    error: RunProblem | None = None
    """Why it failed or is blocked."""
    usage: Usage = field(default_factory=Usage)
    """Requests and tokens of the run so far, with those of nested agents."""
