"""What a run can do next, and what can come of it. Both are plain data; only the driver acts."""

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.base.items import Item
from holdfast.runs.state import (
    Answer,
    CallRecord,
    Conversation,
    Entry,
    GuardrailRecord,
    ResponseRecord,
    View,
)


@dataclass(frozen=True)
class TakeInput:
    """Put the input, and what a session holds before it, in front of the model."""


@dataclass(frozen=True)
class AskModel:
    """Let the current agent's model answer, while the input guardrails look at the input."""


@dataclass(frozen=True)
class Judge:
    """Find out which of the calls may be made."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class Start:
    """Write down that the calls are about to be made."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class Invoke:
    """Make the calls that were started, and answer those that were rejected."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class HandOver:
    """Let another agent take over. Only the first of several handoffs is taken."""

    calls: tuple[CallRecord, ...]


@dataclass(frozen=True)
class Weigh:
    """Decide whether what the tools returned is the final output already."""


@dataclass(frozen=True)
class Finish:
    """Read the final output and let the output guardrails judge it."""


@dataclass(frozen=True)
class GiveUp:
    """The turns are used up."""


Step: TypeAlias = TakeInput | AskModel | Judge | Start | Invoke | HandOver | Weigh | Finish | GiveUp


@dataclass(frozen=True)
class Resumed:
    """A run goes on: the ``decided`` calls need not wait, and calls that were under way may have happened or not."""

    decided: frozenset[str] = frozenset()


@dataclass(frozen=True)
class InputStaged:
    """A person said more, before the model is asked again."""

    items: tuple[Item, ...]


@dataclass(frozen=True)
class InputTaken:
    entries: tuple[Entry, ...]
    conversation: Conversation
    view: View | None = None


@dataclass(frozen=True)
class Answered:
    """The model answered. ``response`` has no place in the transcript yet; ``calls`` are counted from its start.

    ``error`` ends the run after the answer is kept: it was paid for, and a server may know it already.
    """

    entries: tuple[Entry, ...]
    response: ResponseRecord
    calls: tuple[CallRecord, ...] = ()
    answer: Answer | None = None
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True)
class Judged:
    calls: tuple[CallRecord, ...]
    guardrails: tuple[GuardrailRecord, ...] = ()


@dataclass(frozen=True)
class Started:
    call_ids: tuple[str, ...]


@dataclass(frozen=True)
class CallsMade:
    """What became of calls, in the model's order. ``error`` ends the run after everything else is kept."""

    calls: tuple[CallRecord, ...]
    entries: tuple[Entry, ...] = ()
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None


@dataclass(frozen=True)
class HandedOver:
    entries: tuple[Entry, ...]
    agent: str
    view: View | None = None


@dataclass(frozen=True)
class Weighed:
    answer: Answer | None


@dataclass(frozen=True)
class Finished:
    """The run has its final output, or ``error`` says why it does not get one.

    With ``withheld`` the tool's output that was to be the final one is replaced by that text.
    """

    answer: Answer | None
    entries: tuple[Entry, ...] = ()
    guardrails: tuple[GuardrailRecord, ...] = ()
    error: BaseException | None = None
    withheld: str | None = None


@dataclass(frozen=True)
class Stored:
    """The session has the transcript up to this length."""

    length: int


Outcome: TypeAlias = (
    Resumed
    | InputStaged
    | InputTaken
    | Answered
    | Judged
    | Started
    | CallsMade
    | HandedOver
    | Weighed
    | Finished
    | Stored
)
