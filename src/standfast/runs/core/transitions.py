"""The state machine of a run: choose the next step, and apply the outcome of a step. Pure functions of the state."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from standfast.agents.approvals import ApprovalDecision, RecordedDecision
from standfast.runs.core.state import (
    CallRecord,
    CallStatus,
    ConversationMode,
    RunTranscript,
    ServerConversation,
    State,
    TranscriptEntry,
)
from standfast.runs.core.steps import (
    ApprovalsChecked,
    AskModel,
    CallDecided,
    CallsInvoked,
    CallsStarted,
    CheckApprovals,
    CheckToolOutput,
    Finish,
    Finished,
    HandoffPerformed,
    InputStaged,
    InputTaken,
    InvokeCalls,
    ItemsStored,
    ModelAnswered,
    NestedRunStarted,
    Outcome,
    PerformHandoff,
    Resumed,
    StartCalls,
    Step,
    StopAtMaxTurns,
    TakeInput,
    ToolOutputChecked,
)


def choose_next_step(state: State) -> Step | None:
    """Return the next step, or ``None`` when the run has ended or waits for approval."""
    if state.answer is not None:
        return None if state.answer.accepted else Finish()
    if state.calls:
        return _choose_call_step(state)
    if not state.input_taken or state.pending_input:
        return TakeInput()
    if state.max_turns is not None and state.turn >= state.max_turns:
        return StopAtMaxTurns()
    return AskModel()


def is_waiting(state: State) -> bool:
    """Return whether the run cannot continue before a person decides."""
    return not state.ended and choose_next_step(state) is None


def get_storable_length(state: State, *, failing: bool = False, outputs_guarded: bool = False) -> int:
    """Return how many entries of the transcript may be stored in the session now.

    The entries of an unfinished turn are excluded, and so is a final output that has not passed the output guardrails.
    There are two exceptions: a run that waits for approval stores the response with its calls and the outputs so far,
    and a ``failing`` run stores the tool outputs of the turn. With ``outputs_guarded`` tool outputs are held back in
    these cases too, as long as a guardrail may still refuse them as the final output.
    """
    if state.answer is not None and not state.answer.accepted:
        has_outputs = failing and state.answer.call_id is not None
        return len(state.transcript) if has_outputs else state.turn_start
    if not state.calls:
        return len(state.transcript)
    if choose_next_step(state) is None:
        return state.responses[-1].stop if outputs_guarded else len(state.transcript)
    has_outputs = failing and not outputs_guarded and len(state.transcript) > state.responses[-1].stop
    return len(state.transcript) if has_outputs else state.turn_start


def _choose_call_step(state: State) -> Step | None:
    present = {call.status for call in state.calls if call.kind != "handoff"}
    if not present.isdisjoint(("asked", "unknown")):
        return CheckApprovals(_filter_calls(state, ("asked", "unknown")))
    if "approved" in present:
        return StartCalls(_filter_calls(state, ("approved",)))
    if not present.isdisjoint(("started", "rejected")):
        return InvokeCalls(_filter_calls(state, ("started", "rejected")))
    if not present.isdisjoint(("waiting", "failed")):
        return None
    handoffs = tuple([call for call in state.calls if call.kind == "handoff"])
    return PerformHandoff(handoffs) if handoffs else CheckToolOutput()


def _filter_calls(state: State, statuses: Collection[str]) -> tuple[CallRecord, ...]:
    return tuple([call for call in state.calls if call.kind != "handoff" and call.status in statuses])


def apply_outcome(state: State, outcome: Outcome) -> State:
    """Return the state after the outcome. The cost grows with what the outcome adds, not with the run."""
    apply = _transitions.get(type(outcome))
    if apply is None:
        raise TypeError(f"{type(outcome).__name__} is not an outcome of a step")
    return apply(state, outcome)


def apply_at_route(state: State, route: Sequence[str], apply: Callable[[State], State]) -> State:
    """Return the state with the nested run at the end of the route replaced by what ``apply`` makes of it.

    ``route`` holds the ids of the calls that lead to the nested run; with an empty route ``apply`` gets the run itself.
    """
    if not route:
        return apply(state)
    calls = tuple(
        replace(call, child=apply_at_route(call.child, route[1:], apply))
        if call.id == route[0] and call.child is not None
        else call
        for call in state.calls
    )
    return replace(state, calls=calls)


def _apply_resumed(state: State, outcome: Resumed) -> State:
    # A tool that raised may have done its work before.
    after_resume: dict[str, CallStatus] = {"started": "unknown", "failed": "unknown"}
    calls = tuple(
        replace(call, status="asked")
        if call.status == "waiting" and call.id in outcome.decided
        else replace(call, status=after_resume.get(call.status, call.status))
        for call in state.calls
    )
    return state if calls == state.calls else replace(state, calls=calls)


def _apply_input_staged(state: State, outcome: InputStaged) -> State:
    return replace(state, pending_input=state.pending_input + outcome.items, input_checked=False)


def _apply_input_taken(state: State, outcome: InputTaken) -> State:
    return replace(
        state,
        transcript=state.transcript.concat(outcome.entries),
        conversation=outcome.conversation,
        view=outcome.view if not state.input_taken else state.view,
        input_taken=True,
        pending_input=(),
    )


def _apply_model_answered(state: State, outcome: ModelAnswered) -> State:
    start = len(state.transcript)
    transcript = state.transcript.concat(outcome.entries)
    response = replace(outcome.response, start=start, stop=len(transcript))
    calls = tuple(replace(call, position=start + call.position) for call in outcome.calls)
    return replace(
        state,
        transcript=transcript,
        responses=state.responses.concat([response]),
        conversation=_acknowledge_response(state, len(transcript), outcome.response.response_id),
        turn=state.turn + 1,
        start_hooks_run=True,
        input_checked=True,
        calls=calls,
        answer=outcome.answer,
        tools_used=_update_tools_used(state, calls),
        guardrails=state.guardrails.concat(outcome.guardrails),
    )


def _apply_approvals_checked(state: State, outcome: ApprovalsChecked) -> State:
    return replace(
        state, calls=_merge_calls(state, outcome.calls), guardrails=state.guardrails.concat(outcome.guardrails)
    )


def _apply_calls_started(state: State, outcome: CallsStarted) -> State:
    ids = set(outcome.call_ids)
    calls = tuple(replace(call, status="started") if call.id in ids else call for call in state.calls)
    return replace(state, calls=calls)


def _apply_calls_invoked(state: State, outcome: CallsInvoked) -> State:
    return replace(
        state,
        transcript=state.transcript.concat(outcome.entries),
        calls=_merge_calls(state, outcome.calls),
        guardrails=state.guardrails.concat(outcome.guardrails),
        approvals=_drop_used_decisions(state, outcome.calls),
    )


def _apply_handoff_performed(state: State, outcome: HandoffPerformed) -> State:
    return replace(
        state,
        transcript=_hide_entries(state.transcript.concat(outcome.entries), outcome.removed),
        agent=outcome.agent,
        view=outcome.view or state.view,
        start_hooks_run=False,
        calls=(),
    )


def _apply_tool_output_checked(state: State, outcome: ToolOutputChecked) -> State:
    return replace(state, answer=outcome.answer, calls=() if outcome.answer is None else state.calls)


def _apply_finished(state: State, outcome: Finished) -> State:
    transcript = (
        state.transcript if outcome.output_replacement is None else _withhold_output(state, outcome.output_replacement)
    )
    return replace(
        state,
        answer=outcome.answer,
        calls=() if outcome.error is None else state.calls,
        transcript=transcript.concat(outcome.entries),
        guardrails=state.guardrails.concat(outcome.guardrails),
    )


def _apply_items_stored(state: State, outcome: ItemsStored) -> State:
    return replace(state, stored=max(state.stored, outcome.length))


def _apply_nested_run_started(state: State, outcome: NestedRunStarted) -> State:
    calls = tuple(replace(call, child=outcome.child) if call.id == outcome.call_id else call for call in state.calls)
    return replace(state, calls=calls)


def _apply_call_decided(state: State, outcome: CallDecided) -> State:
    decision = outcome.decision
    for call in state.calls:
        if call.id == outcome.call_id and call.uncertain and call.status == "waiting":
            return replace(state, calls=_merge_calls(state, (_decide_uncertain_call(call, decision),)))
    made = [RecordedDecision(outcome.tool, decision, outcome.call_id)]
    if outcome.always:
        sticky = ApprovalDecision(decision.approved, decision.message)
        made.append(RecordedDecision(outcome.tool, sticky, owner=outcome.owner))
    return replace(state, approvals=(*state.approvals, *made))


def _decide_uncertain_call(call: CallRecord, decision: ApprovalDecision) -> CallRecord:
    """Return the record of a call that may have been made already, with the decision in it.

    The decision is kept in the record and not among the approvals of the run: one that was made before the call, or
    about every call of the tool, does not say what to do about this one.
    """
    status: CallStatus = "approved" if decision.approved else "rejected"
    arguments = call.arguments if decision.arguments is None else decision.arguments
    return replace(call, status=status, arguments=arguments, message=decision.message)


def withdraw_approvals(state: State) -> State:
    """Return the state for a run that continues beside this one: approvals of calls that were not made yet are gone.

    Each was for one call, which the other run makes. Rejections stay, and so do decisions about every call of a tool.
    """
    open_ids = {call.id for call in state.calls if call.status in ("asked", "waiting", "approved")}
    approvals = (one for one in state.approvals if not (one.decision.approved and one.call_id in open_ids))
    return replace(state, calls=tuple(map(_withdraw_approval, state.calls)), approvals=tuple(approvals))


def _withdraw_approval(call: CallRecord) -> CallRecord:
    if call.child is not None:
        return replace(call, child=withdraw_approvals(call.child))
    if call.status != "approved":
        return call
    return replace(call, status="waiting") if call.uncertain else replace(call, status="asked", arguments=None)


def _withhold_output(state: State, replacement: str) -> RunTranscript:
    """Return the transcript with ``replacement`` in place of the tool outputs that would have been the final output."""
    final_id = state.answer.call_id if state.answer is not None else None  # empty: all outputs of the turn
    turn = [
        replace(entry, item={**entry.item, "output": replacement}, value=None, custom_data=None)
        if entry.kind == "output" and final_id in ("", entry.item.get("call_id"))
        else entry
        for entry in state.transcript.slice_from(state.turn_start)
    ]
    if state.stored <= state.turn_start:
        turn = _hide_undelivered(turn)
    return state.transcript.slice_to(state.turn_start).concat(turn)


def _hide_entries(transcript: RunTranscript, positions: Collection[int]) -> RunTranscript:
    if not positions:
        return transcript
    first = min(positions)
    tail = [
        replace(entry, hidden=True) if place in positions else entry
        for place, entry in enumerate(transcript.slice_from(first), first)
    ]
    return transcript.slice_to(first).concat(tail)


def _hide_undelivered(turn: list[TranscriptEntry]) -> list[TranscriptEntry]:
    """Return the entries of a turn whose final output was refused, as they are to be stored: without its messages.

    Reasoning belongs to everything that followed it, so a response with reasoning is not stored at all.
    """
    everything = any(entry.kind == "reasoning" for entry in turn)
    return [replace(entry, hidden=True) if everything or entry.kind == "message" else entry for entry in turn]


def _merge_calls(state: State, changed: tuple[CallRecord, ...]) -> tuple[CallRecord, ...]:
    new = {call.position: call for call in changed}
    return tuple(new.get(call.position, call) for call in state.calls)


def _drop_used_decisions(state: State, calls: tuple[CallRecord, ...]) -> tuple[RecordedDecision, ...]:
    """Return the decisions without those about calls that were made: a reused id belongs to another call."""
    made = {(call.tool, call.id) for call in calls if call.status == "done"}
    return tuple(record for record in state.approvals if (record.tool, record.call_id) not in made)


def _update_tools_used(state: State, calls: tuple[CallRecord, ...]) -> dict[str, tuple[str, ...]]:
    used = state.tools_used.get(state.agent, ())
    new = dict.fromkeys(str(call.tool) for call in calls if call.kind == "function" and str(call.tool) not in used)
    return {**state.tools_used, state.agent: (*used, *new)} if new else state.tools_used


def _acknowledge_response(state: State, length: int, response_id: str | None) -> ConversationMode:
    server = state.conversation
    if not isinstance(server, ServerConversation):
        return server
    chained = server.conversation_id is None and (server.auto or server.previous_response_id is not None)
    previous = response_id if chained and response_id is not None else server.previous_response_id
    return replace(server, acknowledged=length, previous_response_id=previous)


_transitions: dict[type[Outcome], Callable[[State, Any], State]] = {
    Resumed: _apply_resumed,
    InputStaged: _apply_input_staged,
    InputTaken: _apply_input_taken,
    ModelAnswered: _apply_model_answered,
    ApprovalsChecked: _apply_approvals_checked,
    CallsStarted: _apply_calls_started,
    CallsInvoked: _apply_calls_invoked,
    HandoffPerformed: _apply_handoff_performed,
    ToolOutputChecked: _apply_tool_output_checked,
    Finished: _apply_finished,
    ItemsStored: _apply_items_stored,
    NestedRunStarted: _apply_nested_run_started,
    CallDecided: _apply_call_decided,
}
