"""A run, made again from what was written down about it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from holdfast.base.errors import NotFound
from holdfast.base.usage import Usage
from holdfast.runs import steps
from holdfast.runs.apply import apply
from holdfast.runs.contexts import SavedContext
from holdfast.runs.state import InSession, State
from holdfast.runs.usage import usage_of
from holdfast.runtime.records import ENDED, Asked, Begun, JournalEntry, Note, Rested, Settled, entry_of
from holdfast.runtime.setbacks import setbacks
from holdfast.store.contract import Backend, RunRecord

Place = tuple[tuple[str, ...], str]
"""A call: the route to its run, and its id."""


@dataclass
class Replayed:
    """A run as its journal tells it. ``asked`` are the questions about calls that nobody has answered."""

    state: State
    context: SavedContext | None
    usage: Usage = field(default_factory=Usage)
    asked: dict[Place, str] = field(default_factory=dict)
    length: int = 0
    setbacks: int = 0
    """How often it had to be recovered since it last came further."""


async def replay(backend: Backend, record: RunRecord, *, upto: int | None = None) -> Replayed:
    """The run after the first ``upto`` entries of its journal, or after all of them."""
    rows = await backend.journal(record.run_id, after=0)
    entries = [entry_of(row) for row in rows[:upto]]
    begun = entries[0].it
    assert isinstance(begun, Begun)  # noqa: S101 - the first entry is written with the run
    if begun.parent is None:
        state = State(run_id=record.run_id, input=begun.input, max_turns=begun.max_turns)
        replayed = Replayed(state, begun.context)
    else:
        replayed = await _forked(backend, record, begun)
    replayed.setbacks = setbacks(entries)
    return _folded(replayed, entries[1:])


async def _forked(backend: Backend, record: RunRecord, begun: Begun) -> Replayed:
    parent = await backend.run(begun.parent or "")
    if parent is None:
        raise NotFound("run", begun.parent)
    found = await replay(backend, parent, upto=begun.at)
    state = replace(found.state, run_id=record.run_id, trace=None)
    if isinstance(state.conversation, InSession) and record.session_id is not None:
        state = replace(state, conversation=replace(state.conversation, session_id=record.session_id))
    return Replayed(state, found.context, found.usage)


def _folded(replayed: Replayed, entries: Iterable[JournalEntry]) -> Replayed:
    for entry in entries:
        replayed.length += 1
        it = entry.it
        if entry.trace is not None:
            replayed.state = replace(replayed.state, trace=entry.trace)
        if entry.context is not None:
            replayed.context = entry.context
        if isinstance(it, Asked):
            replayed.asked[entry.route, it.call_id] = it.approval_id
        elif isinstance(it, Settled):
            replayed.asked.pop((entry.route, it.decided.call_id), None)
            replayed.state = taken_in(replayed.state, entry.route, it.decided)
        elif isinstance(it, Rested):
            if it.status in ENDED:
                replayed.asked.clear()  # they were taken back with its end
        elif not isinstance(it, Note):
            replayed.state = taken_in(replayed.state, entry.route, it, stored=entry.stored)
            if isinstance(it, steps.Answered):
                replayed.usage.add(usage_of(it.response.usage))
    return replayed


def taken_in(state: State, route: tuple[str, ...], outcome: steps.Outcome, *, stored: int | None = None) -> State:
    """The state after an outcome of the nested run at the end of the route, or of the run itself."""
    if route:
        calls = tuple(
            replace(call, child=taken_in(call.child, route[1:], outcome, stored=stored))
            if call.id == route[0] and call.child is not None
            else call
            for call in state.calls
        )
        return replace(state, calls=calls)
    after = apply(state, _with_children(outcome, state))
    return after if stored is None else apply(after, steps.Stored(stored))


def without_children(outcome: steps.Outcome) -> steps.Outcome:
    """The outcome as it is written down: what happened in nested runs has entries of its own."""
    calls: Any = getattr(outcome, "calls", ())
    if not any(call.child for call in calls):
        return outcome
    return replace(outcome, calls=tuple(replace(call, child=None) for call in calls))


def _with_children(outcome: steps.Outcome, state: State) -> steps.Outcome:
    if not isinstance(outcome, steps.Judged | steps.CallsMade):
        return outcome
    known = {call.position: call.child for call in state.calls if call.child is not None}
    if not known:
        return outcome
    calls = tuple(
        call if call.status == "done" else replace(call, child=known.get(call.position)) for call in outcome.calls
    )
    return replace(outcome, calls=calls)
