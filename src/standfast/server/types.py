"""The types of requests and answers. Runs, events and approvals have those of the runtime."""

from typing import Any, Generic, Literal, TypeVar

import msgspec

from standfast.base.items import Item
from standfast.runs.config import DEFAULT_MAX_TURNS
from standfast.runtime.types import ApprovalStatus, BudgetPeriod, CancelMode, OnBusy, RunStatus, Verdict
from standfast.store.records import Head

T = TypeVar("T")


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The base of what clients send: fields that do not exist are refused."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Part of a listing. ``next`` is the value of ``after`` for the next page; ``null`` on the last one."""

    items: list[T]
    next: str | None = None


class Listing(Input, frozen=True, kw_only=True):
    """The size of a page, and where it begins."""

    limit: int = 50
    after: str | None = None


class Problem(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """An error. ``code`` is stable; ``detail`` is for people and names what to do; ``facts`` are those of the error."""

    title: str
    status: int
    detail: str
    code: str
    type: str = "about:blank"
    request_id: str | None = None
    facts: dict[str, Any] = {}


# --- agents ---------------------------------------------------------------------------------------------


class ToolInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of an agent. ``schema`` is the JSON Schema of its arguments, if it has one here."""

    name: str
    description: str = ""
    schema: dict[str, Any] | None = None


class AgentInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that runs can start with."""

    name: str
    description: str | None = None
    model: str | None = None
    tools: list[ToolInfo] = []
    handoffs: list[str] = []


# --- runs -----------------------------------------------------------------------------------------------


class NewRun(Input, frozen=True, kw_only=True):
    """A run to start. Without ``session_id`` it gets a session of its own."""

    agent: str
    input: str | list[Item]
    session_id: str | None = None
    context: dict[str, Any] | None = None
    on_busy: OnBusy = "enqueue"
    max_turns: int | msgspec.UnsetType | None = msgspec.UNSET


class NewSchedule(Input, frozen=True, kw_only=True):
    """When runs of an agent start: at the times of ``cron``, read in ``timezone``, or ``every`` so many seconds."""

    agent: str
    input: str | list[Item]
    cron: str | None = None
    every: float | None = None
    timezone: str = "UTC"
    session_id: str | None = None
    owner: str | None = None
    max_turns: int | None = DEFAULT_MAX_TURNS
    overlap: bool = False


class NewBudget(Input, frozen=True, kw_only=True):
    """What runs may spend in a period: tokens, US dollars, or both."""

    tokens: int | None = None
    cost: float | None = None
    per: BudgetPeriod = "month"
    owner: str | None = None
    agent: str | None = None


class WebhookRequest(Input, frozen=True, kw_only=True):
    """Where events are sent, and which; by default all."""

    url: str
    events: list[str] | None = None
    private: bool = False
    secret: str | None = None


class RunListing(Listing, frozen=True, kw_only=True):
    """Which runs to list, the latest first."""

    status: list[RunStatus] | None = None
    session_id: str | None = None
    owner: str | None = None


class EventListing(Input, frozen=True, kw_only=True):
    """Which events to stream: those after this number, until the run pauses or ends."""

    after: int = 0
    until: Literal["pause", "end"] = "end"


class StepQuery(Input, frozen=True, kw_only=True):
    """The step of a run; by default the latest."""

    at: int | None = None


class CancelRequest(Input, frozen=True, kw_only=True):
    """How to cancel a run."""

    mode: CancelMode = "after_turn"


class ResumeRequest(Input, frozen=True, kw_only=True):
    """How to resume a run."""

    accept_changes: bool = False
    agent: str | None = None


class ForkRequest(Input, frozen=True, kw_only=True):
    """Where to fork a run or a session, and the id of the new session."""

    at: int | None = None
    session_id: str | None = None


class RunForkRequest(ForkRequest, frozen=True, kw_only=True):
    """Where to fork a run, and what is different: its input, outputs of tools by call id, or the agent."""

    input: str | list[Item] | None = None
    outputs: dict[str, str] | None = None
    agent: str | None = None


class RunPruneRequest(Input, frozen=True, kw_only=True):
    """Which ended runs to delete: those that ended this many seconds ago, and those not among the latest ``keep``."""

    older_than: float | None = None
    keep: int | None = None


# --- approvals ------------------------------------------------------------------------------------------


class ApprovalListing(Listing, frozen=True, kw_only=True):
    """Which approvals to list."""

    status: ApprovalStatus | None = None
    run_id: str | None = None
    session_id: str | None = None
    owner: str | None = None


class ApprovalEvents(Input, frozen=True, kw_only=True):
    """Which changes of approvals to stream: those after this cursor."""

    after: str | None = None
    owner: str | None = None


class Decision(Input, frozen=True, kw_only=True):
    """A decision about a call. It is recorded with the subject of the principal."""

    decision: Verdict
    arguments: Any = None
    message: str | None = None
    output: Any = None
    always: bool = False


class NamedDecision(Decision, frozen=True, kw_only=True):
    """A decision in a batch."""

    approval_id: str


class DecisionResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of one decision of a batch: the new ``status`` of the approval, or the ``code`` of the error."""

    approval_id: str
    status: ApprovalStatus | None = None
    code: str | None = None
    detail: str | None = None


# --- calls ----------------------------------------------------------------------------------------------


class NewCallQuery(Input, frozen=True, kw_only=True):
    """The realtime agent to call, and the session of the conversation; without one it gets a new one."""

    agent: str
    session_id: str | None = None


class CallQuery(Input, frozen=True, kw_only=True):
    """The number of the last message that was received."""

    after: int = 0


# --- workspaces -----------------------------------------------------------------------------------------


class NewCell(Input, frozen=True, kw_only=True):
    """Code to run in the workspace of a session. With ``allow_input``, further requests answer its questions."""

    code: str
    timeout: float = 30.0
    allow_input: bool = False


class CellInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A cell. ``result`` is what it produced, once it has ended; ``code`` is that of an error which kept it from it.

    In a listing, cells with much code or a long result are ``shortened``: their ``source`` is cut, and the result left
    out.
    """

    cell_id: str
    session_id: str
    status: Literal["queued", "running", "waiting", "done", "failed"]
    source: str
    subject: str
    started_at: float
    result: dict[str, Any] | None = None
    notes: list[str] = []
    code: str | None = None
    detail: str | None = None
    shortened: bool = False


class CellInput(Input, frozen=True, kw_only=True):
    """The answer to an input request of a cell, whose id is that of the event ``input``; ``eof`` ends the input."""

    input_id: str
    data: str = ""
    eof: bool = False


class InterruptInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Whether code was stopped, and whether the variables survived."""

    stopped: bool
    state: str
    reason: str = ""


class CellEvents(Input, frozen=True, kw_only=True):
    """Which events of a cell to stream: those after this number."""

    after: int = 0


class FilePath(Input, frozen=True, kw_only=True):
    """A file of a workspace."""

    path: str


class RestoreVersion(Input, frozen=True, kw_only=True):
    """The version of a workspace to go back to; 0 is empty."""

    version: int


class NewVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The latest version of a workspace after a change."""

    version: int


class Upload(msgspec.Struct, frozen=True, kw_only=True):
    """The body of an upload: parts of ``multipart/form-data``, each a file with its path as the file name."""

    file: list[bytes]


# --- sessions -------------------------------------------------------------------------------------------


class SessionListing(Listing, frozen=True, kw_only=True):
    """Which sessions to list, the most recently changed first. ``query`` is part of their id or metadata.

    ``since`` is a time in seconds since 1970: those that were not changed after it are left out.
    """

    query: str | None = None
    owner: str | None = None
    since: float | None = None
    stats: bool = False


class NewSession(Input, frozen=True, kw_only=True):
    """A session to create; without an id it gets one."""

    session_id: str | None = None
    metadata: dict[str, Any] = {}


class SessionChange(Input, frozen=True, kw_only=True):
    """Metadata to merge into those of a session; ``null`` removes a key."""

    metadata: dict[str, Any]


class OwnerChange(Input, frozen=True, kw_only=True):
    """The new owner of a session."""

    owner: str


class ItemListing(Input, frozen=True, kw_only=True):
    """Which items of a session to read: the latest ``limit``, of this generation, or as a model would get them."""

    limit: int | None = None
    generation: int | None = None
    paired: bool = False


class SessionItems(msgspec.Struct, frozen=True, kw_only=True):
    """Items of a session, oldest first, and the head of the session when they were read."""

    items: list[Item]
    head: Head


class NewItems(Input, frozen=True, kw_only=True):
    """Items to append in one transaction."""

    items: list[Item]


class RewindRequest(Input, frozen=True, kw_only=True):
    """The length to rewind a session to."""

    to: int


class RestoreRequest(Input, frozen=True, kw_only=True):
    """The generation to restore."""

    generation: int


class SearchQuery(Input, frozen=True, kw_only=True):
    """Words to search for, in all sessions or in one."""

    q: str
    limit: int = 20
    session_id: str | None = None
    owner: str | None = None


class DeleteQuery(Input, frozen=True, kw_only=True):
    """What to do with the runs of a session."""

    runs: Literal["delete", "keep"] = "delete"


# --- server ---------------------------------------------------------------------------------------------


class NewKey(Input, frozen=True, kw_only=True):
    """A key to create. ``expires_at`` is a time in seconds since 1970."""

    name: str
    role: Literal["viewer", "user", "approver", "operator", "admin"]
    owner: str
    expires_at: float | None = None


class AuditListing(Listing, frozen=True, kw_only=True):
    """Which entries of the audit log to list, newest first; times are seconds since 1970."""

    subject: str | None = None
    action: str | None = None
    since: float | None = None
    until: float | None = None


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The server, and the principal that the client is authenticated as.

    ``runs_python`` is whether users run code of their own here, and ``realtime_agents`` are those that can be called.
    """

    version: str
    started_at: float
    draining: bool
    subject: str
    role: str
    owner: str
    runs_python: bool = False
    realtime_agents: list[str] = []


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the server is alive, or ready."""

    status: str
    detail: str | None = None
