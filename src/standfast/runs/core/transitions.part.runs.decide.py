"""What a run does next. A pure function of its state: there is nothing else to look at."""

from collections.abc import Collection

from holdfast.runs.state import CallRecord, State
from holdfast.runs.steps import (
    AskModel,
    CheckApprovals,
    CheckToolOutput,
    Finish,
    InvokeCalls,
    PerformHandoff,
    StartCalls,
    Step,
    StopAtMaxTurns,
    TakeInput,
)


def choose_next_step(state: State) -> Step | None:
    """The next step; ``None`` when the run has ended or waits for a person."""
    if state.answer is not None:
        return None if state.answer.settled else Finish()
    if state.calls:
        return _choose_call_step(state)
    if not state.taken or state.pending_input:
        return TakeInput()
    if state.max_turns is not None and state.turn >= state.max_turns:
        return StopAtMaxTurns()
    return AskModel()


def is_waiting(state: State) -> bool:
    """Whether nothing can be done before a person decides."""
    return not state.ended and choose_next_step(state) is None


def get_storable_length(state: State, *, failing: bool = False, unchecked: bool = False) -> int:
    """How much of the transcript a session may have now.

    Not the work of a turn that is still under way, and not a final output that has yet to be judged. When the run is
    ``failing``, what tools have returned in this turn is worth keeping all the same; when it waits for a person, so
    is the question. With ``unjudged`` what they have returned may still become a final output that is refused.
    """
    if state.answer is not None and not state.answer.settled:
        kept = failing and state.answer.call_id is not None
        return len(state.transcript) if kept else state.turn_start
    if not state.calls:
        return len(state.transcript)
    if choose_next_step(state) is None:
        return state.responses[-1].stop if unchecked else len(state.transcript)
    kept = failing and not unchecked and len(state.transcript) > state.responses[-1].stop
    return len(state.transcript) if kept else state.turn_start


def _choose_call_step(state: State) -> Step | None:
    if asked := _filter_calls(state, ("asked", "unknown")):
        return CheckApprovals(asked)
    if approved := _filter_calls(state, ("approved",)):
        return StartCalls(approved)
    if ready := _filter_calls(state, ("started", "rejected")):
        return InvokeCalls(ready)
    if _filter_calls(state, ("waiting", "failed")):
        return None
    handoffs = tuple(call for call in state.calls if call.kind == "handoff")
    return PerformHandoff(handoffs) if handoffs else CheckToolOutput()


def _filter_calls(state: State, statuses: Collection[str]) -> tuple[CallRecord, ...]:
    return tuple(call for call in state.calls if call.kind != "handoff" and call.status in statuses)
