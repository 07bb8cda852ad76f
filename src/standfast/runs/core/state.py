"""The state of a run as a tree of frozen structs: plain data, without references to live objects.

Agents are paths in the agent graph, tools are references by name, items are JSON. Encoding, strict decoding and the
JSON Schema are derived from the types. A change here changes the saved format: add a version in
:mod:`standfast.runs.core.serialization`.
"""

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from standfast.agents.approvals import RecordedDecision
from standfast.agents.errors import UserError
from standfast.agents.graph import ROOT
from standfast.agents.tool_identity import ToolRef
from standfast.base.collections import AppendOnlyList
from standfast.base.items import Item
from standfast.history.session import find_session_id
from standfast.workspaces.versions import WorkspaceRef, list_output_ids

EntryKind: TypeAlias = Literal[
    "given",  # the input that the run started with
    "input",  # input that was added to the started run
    "message",
    "reasoning",
    "call",
    "output",
    "handoff",  # the call of a handoff
    "handed",  # its output
    "search",  # a search for deferred tools
    "found",  # its result
    "tools_listed",  # the tools of a hosted MCP server
    "approval_asked",  # the request to approve a call of a hosted MCP server
    "approval_answer",  # the decision about it
    "compaction",
]
CallStatus: TypeAlias = Literal["asked", "waiting", "approved", "rejected", "started", "done", "failed", "unknown"]


class PersistedStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of all parts of a saved run: unknown fields are refused."""


class TranscriptEntry(PersistedStruct, frozen=True):
    """One item of the run. Entries of kind ``given`` are its first input, those of kind ``input`` were added later.

    All others were produced by the run.

    ``tool`` refers to the tool of a call. ``value`` is the return value of a tool as far as JSON can represent it, if
    the item itself differs; ``target`` is the agent that a handoff led to. A ``hidden`` entry was refused by
    a guardrail or removed by a handoff filter: it is not stored in a session and is no new item of the result.
    """

    item: Item
    kind: EntryKind
    agent: str = ROOT
    tool: ToolRef | None = None
    value: Any = None
    custom_data: dict[str, Any] | None = None
    target: str | None = None
    input_id: str | None = None
    hidden: bool = False


class RunTranscript(AppendOnlyList[TranscriptEntry]):
    item_type: ClassVar[Any] = TranscriptEntry


class UsageRecord(PersistedStruct, frozen=True):
    """Tokens and requests; ``entries`` has those of single requests, if known."""

    requests: int = 0
    input: int = 0
    cached: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    total: int = 0
    entries: tuple["UsageRecord", ...] = ()


class ResponseRecord(PersistedStruct, frozen=True):
    """One response of a model: the entries of the transcript from ``start`` to ``stop``."""

    start: int
    stop: int
    usage: UsageRecord
    response_id: str | None = None
    request_id: str | None = None
    raw_usage: dict[str, Any] | None = None


class ResponseLog(AppendOnlyList[ResponseRecord]):
    item_type: ClassVar[Any] = ResponseRecord


class CallRecord(PersistedStruct, frozen=True):
    """One call of the current turn and its status. ``position`` is the index of its item in the transcript.

    A call is ``asked`` when the model has requested it, and ``unknown`` when it was in progress as its process ended:
    both are checked for approval next. It is ``uncertain`` if a person must decide whether it is made again.

    ``arguments`` are set if a person edited them, and replace the model's. ``shown`` are the values that the tool will
    get for the model's arguments, as JSON text, if they differ. ``child`` is the state of a nested run.
    ``recipient`` is what the call would have reached when a person was asked about it.
    """

    id: str
    position: int
    tool: ToolRef
    kind: Literal["function", "handoff", "mcp"] = "function"
    status: CallStatus = "asked"
    arguments: str | None = None
    message: str | None = None
    uncertain: bool = False
    shown: str | None = None
    child: "State | None" = None
    recipient: str | None = None


class GuardrailRecord(PersistedStruct, frozen=True):
    """The result of a guardrail. ``judged`` is the output it checked, as far as JSON can represent it."""

    kind: Literal["input", "output", "tool_input", "tool_output"]
    name: str
    agent: str = ROOT
    tripped: bool = False
    info: Any = None
    judged: Any = None
    behavior: dict[str, Any] | None = None


class GuardrailLog(AppendOnlyList[GuardrailRecord]):
    item_type: ClassVar[Any] = GuardrailRecord


class InputSelection(PersistedStruct, frozen=True):
    """The part of the conversation that the model is shown, if that is not all of it.

    ``shown`` has positions and replacement items; positions count the session's items that this run has read, followed
    by the transcript. From ``since`` on, the transcript is shown unchanged. The first ``input_length`` parts are the
    input of the run as a handoff left it.
    """

    shown: tuple[int | Item, ...]
    since: int
    input_length: int | None = None


class InlineConversation(PersistedStruct, frozen=True, tag="inline"):
    """The run's transcript is the whole conversation."""


class SessionConversation(PersistedStruct, frozen=True, tag="session"):
    """The conversation is stored in a session, of which this run read the latest ``window`` items at its start."""

    session_id: str
    window: int = 0
    limit: int | None = None


class ServerConversation(PersistedStruct, frozen=True, tag="server"):
    """The provider stores the conversation; it has the first ``acknowledged`` entries of the transcript."""

    conversation_id: str | None = None
    previous_response_id: str | None = None
    auto: bool = False
    acknowledged: int = 0


ConversationMode: TypeAlias = InlineConversation | SessionConversation | ServerConversation


class FinalOutput(PersistedStruct, frozen=True):
    """The final output; it is ``accepted`` once it has passed the output guardrails.

    ``text`` is the model's text, to be parsed with the agent's output type; otherwise ``call_id`` is the id of the call
    whose output it is, and an empty string means all tool outputs of the turn. ``refusal`` is the model's refusal to
    answer.
    """

    text: str | None = None
    refusal: str | None = None
    value: Any = None
    call_id: str | None = None
    accepted: bool = msgspec.field(default=False, name="settled")


class State(PersistedStruct, frozen=True):
    """The state of a run.

    ``stored`` is the length of the transcript that its session has; ``turn`` counts model responses. ``input_taken`` is
    set when the input is in the transcript, ``start_hooks_run`` when the start hooks of the agent have run,
    ``input_checked`` when the input guardrails have passed.
    """

    run_id: str
    input: str | list[Item]
    transcript: RunTranscript = msgspec.field(default_factory=RunTranscript)
    responses: ResponseLog = msgspec.field(default_factory=ResponseLog)
    conversation: ConversationMode = msgspec.field(default_factory=InlineConversation)
    input_taken: bool = msgspec.field(default=False, name="taken")
    stored: int = 0
    view: InputSelection | None = None
    agent: str = ROOT
    start_hooks_run: bool = msgspec.field(default=False, name="greeted")
    input_checked: bool = msgspec.field(default=False, name="guarded")
    turn: int = 0
    max_turns: int | None = 10
    calls: tuple[CallRecord, ...] = ()
    answer: FinalOutput | None = None
    pending_input: tuple[Item, ...] = ()
    tools_used: dict[str, tuple[str, ...]] = {}
    guardrails: GuardrailLog = msgspec.field(default_factory=GuardrailLog)
    approvals: tuple[RecordedDecision, ...] = ()
    usage: UsageRecord = msgspec.field(default_factory=UsageRecord)
    tool_input: Any = None
    reasoning_item_id_policy: Literal["preserve", "omit"] | None = None
    trace: dict[str, Any] | None = None
    sandbox: dict[str, Any] | None = None
    workspace: WorkspaceRef | None = None

    @property
    def ended(self) -> bool:
        return self.answer is not None and self.answer.accepted

    @property
    def turn_start(self) -> int:
        """The position of the first item of the latest response."""
        return self.responses[-1].start if self.responses else len(self.transcript)


def list_finished_calls(state: State, *, start: int = 0, path: str = "") -> list[str]:
    """Return the ids of the calls that have an output in this state, with the paths of those of nested runs."""
    outputs = [path + name for name in list_output_ids(entry.item for entry in state.transcript[start:])]
    for call in state.calls:
        if call.child is not None:
            outputs += list_finished_calls(call.child, path=f"{path}{call.id}:")
    return outputs


def make_idempotency_key(state: State, route: tuple[str, ...], call: CallRecord) -> str:
    """Return the key by which a tool recognises a call, however often it is made; ``route`` leads to this run."""
    return ":".join((state.run_id, *route, call.id))


def encode_hook(value: Any) -> Any:
    """Encode the append-only lists of a run, for msgspec."""
    if isinstance(value, AppendOnlyList):
        return value.slice_from(0)
    raise NotImplementedError(f"a saved run cannot hold {type(value).__name__}")


def decode_hook(kind: Any, value: Any) -> Any:
    """Decode the append-only lists of a run, for msgspec."""
    if isinstance(kind, type) and issubclass(kind, AppendOnlyList):
        return kind(msgspec.convert(value, list[kind.item_type], dec_hook=decode_hook))
    raise NotImplementedError(f"a saved run cannot hold {kind}")


SESSION_METHODS = ("get_items", "add_items", "pop_item", "clear_session")


def make_conversation(
    conversation_id: str | None, previous_response_id: str | None, auto_previous_response_id: bool
) -> ConversationMode:
    """Return the conversation mode that the arguments of a run select."""
    if conversation_id is not None and (previous_response_id is not None or auto_previous_response_id):
        raise UserError("conversation_id and previous_response_id exclude each other: pass only one of them")
    if conversation_id is None and previous_response_id is None and not auto_previous_response_id:
        return InlineConversation()
    return ServerConversation(conversation_id, previous_response_id, auto=auto_previous_response_id)


def get_state_key(state: State) -> str:
    """Return the id of the conversation, or of the run if it has none."""
    conversation = state.conversation
    if isinstance(conversation, SessionConversation):
        return conversation.session_id
    if isinstance(conversation, ServerConversation) and conversation.conversation_id is not None:
        return conversation.conversation_id
    return state.run_id


def check_session(state: State, session: Any) -> None:
    """Raise :class:`UserError` unless the session is the one that stores the run's conversation, if any does."""
    if session is None:
        if isinstance(state.conversation, SessionConversation) and not state.ended:
            raise UserError(f"this run belongs to the session {state.conversation.session_id!r}: pass that session")
        return
    missing = [name for name in SESSION_METHODS if not hasattr(session, name)]
    if find_session_id(session) is None and not hasattr(type(session), "session_id"):
        missing.insert(0, "session_id")
    if missing:
        raise UserError(f"{session!r} is not a session: it has no {', '.join(missing)}")
    if isinstance(state.conversation, ServerConversation):
        raise UserError(
            "a session cannot be used together with conversation_id, previous_response_id or "
            "auto_previous_response_id: the provider stores that conversation already"
        )
    if isinstance(state.conversation, SessionConversation) and state.conversation.session_id != session.session_id:
        raise UserError(
            f"this run belongs to the session {state.conversation.session_id!r}, not to {session.session_id!r}"
        )
    # A run of openai-agents has the whole conversation in it and can continue in its session.
    if state.input_taken and isinstance(state.conversation, InlineConversation) and not state.stored:
        raise UserError("this run was started without a session and cannot continue in one")
