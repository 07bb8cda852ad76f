"""What a run can do next, and what can come of it. Both are plain data; only the driver acts.

Outcomes can be written down: a run is what :func:`~standfast.runs.core.transitions.apply` makes of them, one after the other.
"""

from dataclasses import dataclass
from typing import TypeAlias

from standfast.agents.approvals import ApprovalDecision
from standfast.agents.tool_identity import ToolRef
from standfast.base.items import Item
from standfast.runs.core.state import (
    CallRecord,
    ConversationMode,
    FinalOutput,
    GuardrailRecord,
    InputSelection,
    PersistedStruct,
    ResponseRecord,
    State,
    TranscriptEntry,
)


@dataclass(frozen=True)
class TakeInput:
    """Put the input, and what a session holds before it, in front of the model."""


@dataclass(frozen=True)
class AskModel:
    """Let the current agent's model answer, while the input guardrails look at the input."""


@dataclass(frozen=True)
class CheckApprovals:
    """Find out which of the calls may be made."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class StartCalls:
    """Write down that the calls are about to be made."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class InvokeCalls:
    """Make the calls that were started, and answer those that were rejected."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class PerformHandoff:
    """Let another agent take over. Only the first of several handoffs is taken."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class CheckToolOutput:
    """Decide whether what the tools returned is the final output already."""


@dataclass(frozen=True)
class Finish:
    """Read the final output and let the output guardrails judge it."""


@dataclass(frozen=True)
class StopAtMaxTurns:
    """The turns are used up."""


Step: TypeAlias = (
    TakeInput
    | AskModel
    | CheckApprovals
    | StartCalls
    | InvokeCalls
    | PerformHandoff
    | CheckToolOutput
    | Finish
    | StopAtMaxTurns
)


class Resumed(PersistedStruct, frozen=True, tag="resumed"):
    """A run goes on: the ``decided`` calls need not wait, and calls that were under way may have happened or not."""

    decided: frozenset[str] = frozenset()


class InputStaged(PersistedStruct, frozen=True, tag="input-staged"):
    """A person said more, before the model is asked again."""

    items: tuple[Item, ...]


class InputTaken(PersistedStruct, frozen=True, tag="input"):
    entries: tuple[TranscriptEntry, ...]
    conversation: ConversationMode
    view: InputSelection | None = None


class ModelAnswered(PersistedStruct, frozen=True, tag="answered"):
    """The model answered. ``response`` has no place in the transcript yet; ``calls`` are counted from its start.

    ``error`` ends the run after the answer is kept: it was paid for, and a server may know it already.
    """

    entries: tuple[TranscriptEntry, ...]
    response: ResponseRecord
    calls: tuple[CallRecord, ...] = ()
    answer: FinalOutput | None = None
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None


class ApprovalsChecked(PersistedStruct, frozen=True, tag="judged"):
    calls: tuple[CallRecord, ...]
    guardrails: tuple[GuardrailRecord, ...] = ()


class CallsStarted(PersistedStruct, frozen=True, tag="started"):
    call_ids: tuple[str, ...]


class CallsInvoked(PersistedStruct, frozen=True, tag="calls-made"):
    """What became of calls, in the model's order. ``error`` ends the run after everything else is kept."""

    calls: tuple[CallRecord, ...]
    entries: tuple[TranscriptEntry, ...] = ()
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None


class HandoffPerformed(PersistedStruct, frozen=True, tag="handed-over"):
    entries: tuple[TranscriptEntry, ...]
    agent: str
    view: InputSelection | None = None


class ToolOutputChecked(PersistedStruct, frozen=True, tag="weighed"):
    answer: FinalOutput | None


class Finished(PersistedStruct, frozen=True, tag="finished"):
    """The run has its final output, or ``error`` says why it does not get one.

    With ``withheld`` the tool's output that was to be the final one is replaced by that text.
    """

    answer: FinalOutput | None
    entries: tuple[TranscriptEntry, ...] = ()
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None
    withheld: str | None = None


class ItemsStored(PersistedStruct, frozen=True, tag="stored"):
    """The session has the transcript up to this length."""

    length: int


class NestedRunStarted(PersistedStruct, frozen=True, tag="nested-begun"):
    """The agent behind a call begins, with this state. What comes of it belongs to that state."""

    call_id: str
    child: State


class CallDecided(PersistedStruct, frozen=True, tag="decided"):
    """A person decided about a call that waits; with ``always``, about every further call of that agent's tool.

    A no to a call that may have happened already can also mean that it did: ``message`` is then its output.
    """

    call_id: str
    tool: ToolRef
    decision: ApprovalDecision
    owner: str | None = None
    always: bool = False


Outcome: TypeAlias = (
    Resumed
    | InputStaged
    | InputTaken
    | ModelAnswered
    | ApprovalsChecked
    | CallsStarted
    | CallsInvoked
    | HandoffPerformed
    | ToolOutputChecked
    | Finished
    | ItemsStored
    | NestedRunStarted
    | CallDecided
)
