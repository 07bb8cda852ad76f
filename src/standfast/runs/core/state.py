"""Everything that a run remembers, as one tree of frozen structs without live objects.

Agents are paths into the agent graph, tools are canonical keys, what a model said is plain JSON. Encoding, strict
decoding and the JSON Schema come from the types. What changes here changes what is saved: bump the version in
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

EntryKind: TypeAlias = Literal[
    "given",
    "input",
    "message",
    "reasoning",
    "call",
    "output",
    "handoff",
    "handed",
    "search",
    "found",
    "tools_listed",
    "approval_asked",
    "approval_answer",
    "compaction",
]
CallStatus: TypeAlias = Literal["asked", "waiting", "approved", "rejected", "started", "done", "failed", "unknown"]


class PersistedStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all parts of a saved run have in common."""


class TranscriptEntry(PersistedStruct, frozen=True):
    """One item of the run. ``given`` items came with the input, all others are the run's own.

    ``tool`` is the key of the tool that a call means. ``value`` is what a tool returned, as far as JSON can hold it,
    when the item itself does not say; ``target`` is where a handoff led. A ``hidden`` entry is not stored in a session.
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
    """Tokens and requests; ``entries`` are those of single requests where they are known."""

    requests: int = 0
    input: int = 0
    cached: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    total: int = 0
    entries: tuple["UsageRecord", ...] = ()


class ResponseRecord(PersistedStruct, frozen=True):
    """One answer of a model: its items are the transcript's from ``start`` to ``stop``."""

    start: int
    stop: int
    usage: UsageRecord
    response_id: str | None = None
    request_id: str | None = None
    raw_usage: dict[str, Any] | None = None


class ResponseLog(AppendOnlyList[ResponseRecord]):
    item_type: ClassVar[Any] = ResponseRecord


class CallRecord(PersistedStruct, frozen=True):
    """One call of the current turn and what became of it. ``position`` is where its item stands in the transcript.

    ``arguments`` replace the model's own, if a person edited them. ``child`` is the run of a nested agent.
    """

    id: str
    position: int
    tool: ToolRef
    kind: Literal["function", "handoff", "mcp"] = "function"
    status: CallStatus = "asked"
    arguments: str | None = None
    message: str | None = None
    uncertain: bool = False
    child: "State | None" = None


class GuardrailRecord(PersistedStruct, frozen=True):
    """What a guardrail said. ``info`` and ``judged`` are kept as far as JSON can hold them."""

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
    """What the model is shown where that is not simply everything.

    ``shown`` has positions and substitutes; positions count the session's items that this run read first and the
    transcript after them. From ``since`` on, the transcript is shown as it is.
    """

    shown: tuple[int | Item, ...]
    since: int


class InlineConversation(PersistedStruct, frozen=True, tag="inline"):
    """The run's own transcript is the whole conversation."""


class SessionConversation(PersistedStruct, frozen=True, tag="session"):
    """The conversation goes on in a session, of which this run read the latest ``window`` items first."""

    session_id: str
    window: int = 0
    limit: int | None = None


class ServerConversation(PersistedStruct, frozen=True, tag="server"):
    """The provider keeps the conversation; it has the first ``acknowledged`` entries of the transcript."""

    conversation_id: str | None = None
    previous_response_id: str | None = None
    auto: bool = False
    acknowledged: int = 0


ConversationMode: TypeAlias = InlineConversation | SessionConversation | ServerConversation


class FinalOutput(PersistedStruct, frozen=True):
    """The final output, or a candidate for it until the output guardrails agreed.

    A text is still to be read with the agent's output type; ``call_id`` names the tool whose output it is otherwise.
    A ``refusal`` is what the model said instead of answering.
    """

    text: str | None = None
    refusal: str | None = None
    value: Any = None
    call_id: str | None = None
    settled: bool = False


class State(PersistedStruct, frozen=True):
    """A run. ``stored`` is how much of the transcript its session has; ``turn`` counts the model's answers."""

    run_id: str
    input: str | list[Item]
    transcript: RunTranscript = msgspec.field(default_factory=RunTranscript)
    responses: ResponseLog = msgspec.field(default_factory=ResponseLog)
    conversation: ConversationMode = msgspec.field(default_factory=InlineConversation)
    taken: bool = False
    stored: int = 0
    view: InputSelection | None = None
    agent: str = ROOT
    greeted: bool = False
    guarded: bool = False
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

    @property
    def ended(self) -> bool:
        return self.answer is not None and self.answer.settled

    @property
    def turn_start(self) -> int:
        """Where the items of the latest answer begin."""
        return self.responses[-1].start if self.responses else len(self.transcript)


def make_idempotency_key(state: State, route: tuple[str, ...], call: CallRecord) -> str:
    """Return the key by which a tool recognises a call, however often it is made; ``route`` leads to this run."""
    return ":".join((state.run_id, *route, call.id))


def encode_hook(value: Any) -> Any:
    """How logs become JSON."""
    if isinstance(value, AppendOnlyList):
        return value.slice_from(0)
    raise NotImplementedError(f"a saved run cannot hold {type(value).__name__}")


def decode_hook(kind: Any, value: Any) -> Any:
    """How logs come back from JSON."""
    if isinstance(kind, type) and issubclass(kind, AppendOnlyList):
        return kind(msgspec.convert(value, list[kind.item_type], dec_hook=decode_hook))
    raise NotImplementedError(f"a saved run cannot hold {kind}")


SESSION_ATTRIBUTES = ("session_id", "get_items", "add_items", "pop_item", "clear_session")


def make_conversation(
    conversation_id: str | None, previous_response_id: str | None, auto_previous_response_id: bool
) -> ConversationMode:
    """The conversation that a program's arguments describe."""
    if conversation_id is not None and (previous_response_id is not None or auto_previous_response_id):
        raise UserError("a conversation_id cannot be used together with a previous_response_id")
    if conversation_id is None and previous_response_id is None and not auto_previous_response_id:
        return InlineConversation()
    return ServerConversation(conversation_id, previous_response_id, auto=auto_previous_response_id)


def get_conversation_key(state: State) -> str:
    """What tools may keep things under, from run to run where there is more than this run."""
    kept = state.conversation
    if isinstance(kept, SessionConversation):
        return kept.session_id
    if isinstance(kept, ServerConversation) and kept.conversation_id is not None:
        return kept.conversation_id
    return state.run_id


def check_session(state: State, session: Any) -> None:
    """Refuse a session for a conversation that somebody else keeps, and to go on without the one that keeps it."""
    if session is None:
        if isinstance(state.conversation, SessionConversation) and not state.ended:
            raise UserError(f"this run belongs to the session {state.conversation.session_id!r}: give it that session")
        return
    missing = [name for name in SESSION_ATTRIBUTES if not hasattr(session, name)]
    if missing:
        raise UserError(f"{session!r} is not a session: it has no {', '.join(missing)}")
    if isinstance(state.conversation, ServerConversation):
        raise UserError(
            "a session cannot be used together with conversation_id, previous_response_id or "
            "auto_previous_response_id: the provider keeps that conversation already"
        )
    if isinstance(state.conversation, SessionConversation) and state.conversation.session_id != session.session_id:
        raise UserError(
            f"this run belongs to the session {state.conversation.session_id!r}, not to {session.session_id!r}"
        )
    if state.taken and isinstance(state.conversation, InlineConversation):
        raise UserError("this run began without a session; it cannot continue in one")
