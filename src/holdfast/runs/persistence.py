"""What a run reads from a session and what it stores there.

Three things are different: what the model is shown, what is new and has to be stored, and the whole history.
"""

from collections.abc import Sequence
from typing import Any

from holdfast.agents.errors import UserError
from holdfast.base.errors import InvalidItem
from holdfast.base.ids import new_id
from holdfast.base.items import Item, decode_item, encode_items
from holdfast.base.pairing import paired, units
from holdfast.base.usage import Usage
from holdfast.history.contract import Session, takes_keys
from holdfast.history.responses_compaction import is_openai_responses_compaction_aware_session
from holdfast.models.contract import usage_in
from holdfast.runs.apply import apply
from holdfast.runs.decide import saveable
from holdfast.runs.known_history import adding, shown_history
from holdfast.runs.live import Live
from holdfast.runs.session_input import arranged
from holdfast.runs.state import Entry, InSession, View
from holdfast.runs.steps import InputTaken, Outcome, Stored
from holdfast.runs.view import without_id


async def take_input(run: Live) -> InputTaken:
    """The run's input, behind what its session holds. Input given to a run that is under way comes after all."""
    state = run.state
    if state.taken:
        staged = [Entry(item, "input", agent=state.agent, input_id=new_id("input")) for item in state.pending_input]
        return InputTaken(tuple(staged), state.conversation)
    new = as_items(state.input)
    session = run.session
    if session is None:
        run.view.begin([])
        return InputTaken(_given(new), state.conversation)
    limit = run.config.session_settings.limit if run.config.session_settings else None
    if limit is None:
        history, window = await shown_history(session)
    else:
        read = await session.get_items(limit=limit)
        history, window = paired(read), len(read)
    run.view.begin(history)
    conversation = InSession(session.session_id, window=window, limit=limit)
    callback = run.config.session_input_callback
    if callback is None:
        return InputTaken(_given(new), conversation)
    found = await arranged(callback, run.view.history, new)
    return InputTaken(_given(found.kept), conversation, View(found.shown, len(found.kept)))


async def load_history(run: Live) -> None:
    """Read again what the session held before this run, for a run that goes on elsewhere.

    It is what stands before this run's own items. When those do not stand together, or what the run has chosen from
    is not all there, because others wrote or the history was compacted or cleared meanwhile, everything that is not
    the run's own counts.
    """
    state, session = run.state, run.session
    if not run.view.needs_history(state):
        run.view.begin([]) if not run.view.loaded else None
        return
    assert isinstance(state.conversation, InSession)  # noqa: S101 - needs_history says so
    if session is None:
        raise UserError(f"this run belongs to the session {state.conversation.session_id!r}: give it that session")
    own = [stored_form(run, entry.item) for entry in state.transcript[: state.stored] if not entry.hidden]
    window = state.conversation.window
    items = await session.get_items(limit=window + len(own))
    if items[max(len(items) - len(own), 0) :] != own and not _limited(session):
        items = await session.get_items()
    start = _find(items, own)
    if start is not None:
        before = items[max(start - window, 0) : start]
        if len(before) == window or not run.view.counts_on_history(state):
            run.view.begin(paired(before))
            return
    # A write may have arrived although it seemed to fail: what is yet to be stored is the run's own as well.
    others, first = _apart(items, [stored_form(run, entry.item) for entry in state.transcript])
    run.view.begin(paired(others))
    run.view.skip(state, min(first, state.stored, state.turn_start if state.calls else state.stored))


async def keep(run: Live, outcome: Outcome) -> None:
    """Take an outcome in, and store what is settled by it: in the session, or with the run's own keeper."""
    if run.keeper is not None:
        await run.keeper.keep(run, outcome)
        return
    run.state = apply(run.state, outcome)
    if run.session is not None:
        await save(run, failing=getattr(outcome, "error", None) is not None)


async def save(run: Live, *, failing: bool = False) -> None:
    """Store what is new and settled, in one batch. Nothing is ever stored twice."""
    session, state = run.session, run.state
    if session is None or state.stored == len(state.transcript):
        return
    until = saveable(state, failing=failing, unjudged=may_be_refused(run))
    if until <= state.stored:
        return
    batch = [stored_form(run, entry.item) for entry in state.transcript[state.stored : until] if not entry.hidden]
    if batch:
        await _add(run, session, batch, key=f"{state.run_id}:{state.stored}:{until}")
    run.state = apply(run.state, Stored(until))
    run.resumed = False
    if until > state.turn_start:
        await _compact(run, session)


def may_be_refused(run: Live) -> bool:
    """Whether what tools return may be the final output, and somebody judges that."""
    agent = run.current_agent
    return agent.tool_use_behavior != "run_llm_again" and bool(run.config.output_guardrails or agent.output_guardrails)


async def _add(run: Live, session: Session, batch: list[Item], *, key: str) -> None:
    if run.resumed:
        batch = await _missing(session, batch)
    if not batch:
        return
    if takes_keys(session):
        async with adding(session, batch):
            await session.add_items(batch, key=key)  # type: ignore[call-arg]
        return
    await session.add_items(batch)


async def _missing(session: Session, batch: list[Item]) -> list[Item]:
    """What of the batch the session does not have at its end already.

    A write that failed may have arrived all the same, and the run may have come further since: no key tells that.
    """
    latest = await session.get_items(limit=len(batch))
    for there in range(len(latest), 0, -1):
        if latest[len(latest) - there :] == batch[:there]:
            return batch[there:]
    return batch


async def _compact(run: Live, session: Session) -> None:
    state = run.state
    if not is_openai_responses_compaction_aware_session(session) or not state.responses:
        return
    response_id = state.responses[-1].response_id
    if response_id is None:
        return
    store = run.current_agent.model_settings.resolve(run.config.model_settings).store
    await session.run_compaction({"response_id": response_id, **({} if store is None else {"store": store})})
    take = getattr(session, "take_compactions", None)
    for compaction in take() if take is not None else ():
        run.context.usage.add(_usage(compaction.usage))


def _usage(usage: Any) -> Usage:
    return usage_in(usage)


def as_items(input: str | Sequence[Item]) -> list[Item]:
    """The input of a run as items."""
    return [{"content": input, "role": "user"}] if isinstance(input, str) else list(input)


def checked_input(input: Any) -> str | list[Item]:
    """The input, made of JSON only and shared with nobody, or a typed error that says where it is wrong."""
    try:
        encoded = encode_items(as_items(input) if isinstance(input, str) else input)
    except InvalidItem as error:
        raise UserError(f"the input of a run must be a text or a list of items: {error}") from error
    return input if isinstance(input, str) else [decode_item(data) for data in encoded]


def _given(items: Sequence[Item]) -> tuple[Entry, ...]:
    return tuple(Entry(item, "given") for item in items)


def stored_form(run: Live, item: Item) -> Item:
    """The item as a session has it."""
    return without_id(run.state, item)


def _limited(session: Session) -> bool:
    settings = getattr(session, "session_settings", None)
    return settings is not None and settings.limit is not None


def _apart(items: list[Item], own: list[Item]) -> tuple[list[Item], int]:
    """The history without this run's own items, and from which of those on they are still there, in whole pairs.

    What is not there any more is told by what is there instead, for example a summary, unless there is nothing.
    """
    others, end, first = list(items), len(items), len(own)
    for index in range(len(own) - 1, -1, -1):
        place = next((place for place in range(end - 1, -1, -1) if items[place] == own[index]), None)
        if place is not None:
            del others[place]
            end, first = place, index
    if not others:
        return others, 0
    return others, next((unit.start for unit in units(own) if first in unit), len(own))


def _find(items: list[Item], own: list[Item]) -> int | None:
    """Where this run's own items begin: their latest whole occurrence."""
    if not own:
        return len(items)
    for start in range(len(items) - len(own), -1, -1):
        if items[start] == own[0] and items[start : start + len(own)] == own:
            return start
    return None
