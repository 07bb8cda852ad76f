"""The steps of a run and their outcomes, as plain data. :mod:`standfast.runs.driver` executes them.

Outcomes can be recorded: applying them in order with :func:`~standfast.runs.core.transitions.apply_outcome` gives the
state of the run. Their tags are stored and must not change.
"""

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

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
    """Add the input to the transcript, after reading the session's history."""


@dataclass(frozen=True)
class AskModel:
    """Call the current agent's model while the input guardrails check the input."""


@dataclass(frozen=True)
class CheckApprovals:
    """Determine which of the calls may be made."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class StartCalls:
    """Record that the calls are about to be made."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class InvokeCalls:
    """Make the started calls, and produce outputs for the rejected ones."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class PerformHandoff:
    """Switch to another agent. Only the first of several handoffs is made."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class CheckToolOutput:
    """Determine whether the outputs of the tools are the final output."""


@dataclass(frozen=True)
class Finish:
    """Parse the final output and check it with the output guardrails."""


@dataclass(frozen=True)
class StopAtMaxTurns:
    """End the run because it has reached its limit of turns."""


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
    """The run was resumed: calls in ``decided`` can be made now, and the results of those in progress are unknown.

    ``decided`` has the ids of calls that a person has decided about, or whose nested run can continue.
    """

    decided: frozenset[str] = frozenset()


class InputStaged(PersistedStruct, frozen=True, tag="input-staged"):
    """Input was added, for the next model call."""

    items: tuple[Item, ...]


class InputTaken(PersistedStruct, frozen=True, tag="input"):
    """The input is in the transcript."""

    entries: tuple[TranscriptEntry, ...]
    conversation: ConversationMode
    view: InputSelection | None = None


class ModelAnswered(PersistedStruct, frozen=True, tag="answered"):
    """The model responded. The positions in ``response`` are not set yet; those of ``calls`` count from its start.

    ``error`` ends the run after the response is recorded: it was paid for, and a server may have stored it.
    """

    entries: tuple[TranscriptEntry, ...]
    response: ResponseRecord
    calls: tuple[CallRecord, ...] = ()
    answer: FinalOutput | None = None
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None
    model: str | None = None
    """The name of the model, or of its class if it has none."""


class ApprovalsChecked(PersistedStruct, frozen=True, tag="judged"):
    """The calls are approved, rejected or wait for approval."""

    calls: tuple[CallRecord, ...]
    guardrails: tuple[GuardrailRecord, ...] = ()


class CallsStarted(PersistedStruct, frozen=True, tag="started"):
    """The calls are about to be made. A process that dies after this leaves them uncertain."""

    call_ids: tuple[str, ...]


class CallsInvoked(PersistedStruct, frozen=True, tag="calls-made"):
    """The results of calls, in the model's order. ``error`` ends the run after everything else is recorded."""

    calls: tuple[CallRecord, ...]
    entries: tuple[TranscriptEntry, ...] = ()
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None


class HandoffPerformed(PersistedStruct, frozen=True, tag="handed-over"):
    """Another agent is active; ``view`` is set if a filter changed what its model is shown.

    ``removed`` are the positions of entries of this turn that the filter removed from the record of the run.
    """

    entries: tuple[TranscriptEntry, ...]
    agent: str
    view: InputSelection | None = None
    removed: frozenset[int] = frozenset()


class ToolOutputChecked(PersistedStruct, frozen=True, tag="weighed"):
    """The outputs of the tools are the final output (``answer``), or the model is called again."""

    answer: FinalOutput | None


class Finished(PersistedStruct, frozen=True, tag="finished"):
    """The run has its final output, or ``error`` is the reason why it has none.

    ``output_replacement`` takes the place of a tool output that an output guardrail refused as the final output.
    """

    answer: FinalOutput | None
    entries: tuple[TranscriptEntry, ...] = ()
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None
    output_replacement: str | None = msgspec.field(default=None, name="withheld")


class ItemsStored(PersistedStruct, frozen=True, tag="stored"):
    """The session has the entries of the transcript up to this length."""

    length: int


class NestedRunStarted(PersistedStruct, frozen=True, tag="nested-begun"):
    """The nested run of a call starts with this state; its outcomes are recorded with the route to it."""

    call_id: str
    child: State


class CallDecided(PersistedStruct, frozen=True, tag="decided"):
    """A waiting call was decided; with ``always``, so is every further call of that tool by that agent.

    An uncertain call that did happen is recorded as a rejection whose ``message`` is the output of the call.
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
