"""What an outcome makes of a run. Pure: the state before stays what it was."""

from functools import singledispatch

from msgspec.structs import replace

from holdfast.agents.approvals import Decision, Recorded
from holdfast.runs.state import CallRecord, CallStatus, Conversation, OnServer, State, Transcript
from holdfast.runs.steps import (
    Answered,
    CallsMade,
    Decided,
    Finished,
    HandedOver,
    InputStaged,
    InputTaken,
    Judged,
    NestedBegun,
    Outcome,
    Resumed,
    Started,
    Stored,
    Weighed,
)


def apply(state: State, outcome: Outcome) -> State:
    """The state after the outcome. It costs what the outcome adds, however long the run is."""
    return _apply(outcome, state)


@singledispatch
def _apply(outcome: Outcome, state: State) -> State:
    raise TypeError(f"{type(outcome).__name__} is no outcome of a step")


@_apply.register
def _(outcome: Resumed, state: State) -> State:
    # A call that failed was allowed to be made, and it may again.
    fresh: dict[str, CallStatus] = {"started": "unknown", "failed": "approved"}
    calls = tuple(
        replace(call, status="asked")
        if call.status == "waiting" and call.id in outcome.decided
        else replace(call, status=fresh.get(call.status, call.status))
        for call in state.calls
    )
    return state if calls == state.calls else replace(state, calls=calls)


@_apply.register
def _(outcome: InputStaged, state: State) -> State:
    return replace(state, pending_input=state.pending_input + outcome.items, guarded=False)


@_apply.register
def _(outcome: InputTaken, state: State) -> State:
    return replace(
        state,
        transcript=state.transcript.plus(outcome.entries),
        conversation=outcome.conversation,
        view=outcome.view if not state.taken else state.view,
        taken=True,
        pending_input=(),
    )


@_apply.register
def _(outcome: Answered, state: State) -> State:
    start = len(state.transcript)
    transcript = state.transcript.plus(outcome.entries)
    response = replace(outcome.response, start=start, stop=len(transcript))
    calls = tuple(replace(call, position=start + call.position) for call in outcome.calls)
    return replace(
        state,
        transcript=transcript,
        responses=state.responses.plus([response]),
        conversation=_acknowledged(state, len(transcript), outcome.response.response_id),
        turn=state.turn + 1,
        greeted=True,
        guarded=True,
        calls=calls,
        answer=outcome.answer,
        tools_used=_used(state, calls),
        guardrails=state.guardrails.plus(outcome.guardrails),
    )


@_apply.register
def _(outcome: Judged, state: State) -> State:
    return replace(state, calls=_merged(state, outcome.calls), guardrails=state.guardrails.plus(outcome.guardrails))


@_apply.register
def _(outcome: Started, state: State) -> State:
    ids = set(outcome.call_ids)
    calls = tuple(replace(call, status="started") if call.id in ids else call for call in state.calls)
    return replace(state, calls=calls)


@_apply.register
def _(outcome: CallsMade, state: State) -> State:
    return replace(
        state,
        transcript=state.transcript.plus(outcome.entries),
        calls=_merged(state, outcome.calls),
        guardrails=state.guardrails.plus(outcome.guardrails),
        approvals=_unspent(state, outcome.calls),
    )


@_apply.register
def _(outcome: HandedOver, state: State) -> State:
    return replace(
        state,
        transcript=state.transcript.plus(outcome.entries),
        agent=outcome.agent,
        view=outcome.view or state.view,
        greeted=False,
        calls=(),
    )


@_apply.register
def _(outcome: Weighed, state: State) -> State:
    return replace(state, answer=outcome.answer, calls=() if outcome.answer is None else state.calls)


@_apply.register
def _(outcome: Finished, state: State) -> State:
    transcript = state.transcript if outcome.withheld is None else _without_output(state, outcome.withheld)
    return replace(
        state,
        answer=outcome.answer,
        calls=() if outcome.error is None else state.calls,
        transcript=transcript.plus(outcome.entries),
        guardrails=state.guardrails.plus(outcome.guardrails),
    )


@_apply.register
def _(outcome: Stored, state: State) -> State:
    return replace(state, stored=max(state.stored, outcome.length))


@_apply.register
def _(outcome: NestedBegun, state: State) -> State:
    calls = tuple(replace(call, child=outcome.child) if call.id == outcome.call_id else call for call in state.calls)
    return replace(state, calls=calls)


@_apply.register
def _(outcome: Decided, state: State) -> State:
    decision = outcome.decision
    for call in state.calls:
        if call.id == outcome.call_id and call.uncertain and call.status == "waiting":
            # It is kept in the call's record: what was decided before the call was made is no answer to this.
            status: CallStatus = "approved" if decision.approved else "rejected"
            edited = decision.arguments if decision.arguments is not None else call.arguments
            settled = replace(call, status=status, arguments=edited, message=decision.message)
            return replace(state, calls=_merged(state, (settled,)))
    made = [Recorded(outcome.tool, decision, outcome.call_id)]
    if outcome.always:
        sticky = Decision(decision.approved, decision.message)
        made.append(Recorded(outcome.tool, sticky, owner=outcome.owner))
    return replace(state, approvals=(*state.approvals, *made))


def _without_output(state: State, text: str) -> Transcript:
    """The transcript without what the tools returned in this turn, as far as it was to be the final output."""
    meant = state.answer.call_id if state.answer is not None else None
    turn = [
        replace(entry, item={**entry.item, "output": text}, value=None, custom_data=None)
        if entry.kind == "output" and meant in ("", entry.item.get("call_id"))
        else entry
        for entry in state.transcript.since(state.turn_start)
    ]
    return state.transcript.upto(state.turn_start).plus(turn)


def _merged(state: State, changed: tuple[CallRecord, ...]) -> tuple[CallRecord, ...]:
    new = {call.position: call for call in changed}
    return tuple(new.get(call.position, call) for call in state.calls)


def _unspent(state: State, calls: tuple[CallRecord, ...]) -> tuple[Recorded, ...]:
    """The decisions without those about calls that were made: an id that is used again is another call's."""
    made = {(call.tool, call.id) for call in calls if call.status == "done"}
    return tuple(kept for kept in state.approvals if (kept.tool, kept.call_id) not in made)


def _used(state: State, calls: tuple[CallRecord, ...]) -> dict[str, tuple[str, ...]]:
    known = state.tools_used.get(state.agent, ())
    new = dict.fromkeys(str(call.tool) for call in calls if call.kind != "handoff" and str(call.tool) not in known)
    return {**state.tools_used, state.agent: (*known, *new)} if new else state.tools_used


def _acknowledged(state: State, length: int, response_id: str | None) -> Conversation:
    server = state.conversation
    if not isinstance(server, OnServer):
        return server
    chained = server.conversation_id is None and (server.auto or server.previous_response_id is not None)
    previous = response_id if chained and response_id is not None else server.previous_response_id
    return replace(server, acknowledged=length, previous_response_id=previous)
