"""What a run reads from a session and what it stores there.

Three things are different: what the model is shown, what is new and has to be stored, and the whole history.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from standfast.agents.errors import UserError
from standfast.base.errors import HistoryMoved, InvalidItem
from standfast.base.ids import new_id
from standfast.base.items import Item, decode_item, encode_items
from standfast.base.pairing import drop_unpaired, group_into_units
from standfast.base.usage import Usage
from standfast.history.openai.compaction import is_openai_responses_compaction_aware_session
from standfast.history.session import Session, accepts_keys
from standfast.models.interface import parse_usage
from standfast.runs._loop.model_input import arrange_input, strip_reasoning_id
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.state import InputSelection, SessionConversation, TranscriptEntry
from standfast.runs.core.steps import InputTaken, ItemsStored, Outcome
from standfast.runs.core.transitions import apply_outcome, get_storable_length


async def remove_own_items(session: Session, own: list[Item]) -> bool:
    """Remove exactly ``own`` from the end of the history. If that is not what stands there, nothing is removed.

    Sessions that can do it take it back in one commit. From others it is popped item by item; when that fails, or
    something else comes up, what was taken off is put back in order.
    """
    if not own:
        return True
    if hasattr(session, "rewind") and hasattr(session, "head"):
        return await _remove_atomically(session, own)
    if await session.get_items(limit=len(own)) != own:
        return False
    popped: list[Item] = []
    try:
        for expected in reversed(own):
            item = await session.pop_item()
            if item is None:
                break
            popped.append(item)
            if item != expected:
                break
    except BaseException:
        await _restore_items(session, popped)
        raise
    if popped != own[::-1]:
        await _restore_items(session, popped)
        return False
    return True


async def _remove_atomically(session: Any, own: list[Item]) -> bool:
    while True:
        head = await session.head()
        if head.length < len(own) or await session.get_items(limit=len(own)) != own:
            return False
        try:
            await session.rewind(head.length - len(own), expected=head)
        except HistoryMoved:
            continue
        return True


async def _restore_items(session: Session, popped: list[Item]) -> None:
    if popped:
        await session.add_items(popped[::-1])


async def take_input(run: ActiveRun) -> InputTaken:
    """The run's input, behind what its session holds. Input given to a run that is under way comes after all."""
    state = run.state
    if state.taken:
        staged = [
            TranscriptEntry(item, "input", agent=state.agent, input_id=new_id("input")) for item in state.pending_input
        ]
        return InputTaken(tuple(staged), state.conversation)
    new = as_items(state.input)
    session = run.session
    if session is None:
        run.model_input.start([])
        return InputTaken(_make_input_entries(new), state.conversation)
    limit = run.config.session_settings.limit if run.config.session_settings else None
    if limit is None:
        history, window = await read_history(session)
    else:
        read = await session.get_items(limit=limit)
        history, window = drop_unpaired(read), len(read)
    run.model_input.start(history)
    conversation = SessionConversation(session.session_id, window=window, limit=limit)
    callback = run.config.session_input_callback
    if callback is None:
        return InputTaken(_make_input_entries(new), conversation)
    found = await arrange_input(callback, run.model_input.history, new)
    return InputTaken(
        _make_input_entries(found.new_items), conversation, InputSelection(found.selection, len(found.new_items))
    )


async def load_history(run: ActiveRun) -> None:
    """Read again what the session held before this run, for a run that goes on elsewhere.

    It is what stands before this run's own items. When those do not stand together, or what the run has chosen from
    is not all there, because others wrote or the history was compacted or cleared meanwhile, everything that is not
    the run's own counts.
    """
    state, session = run.state, run.session
    if not run.model_input.needs_history(state):
        run.model_input.start([]) if not run.model_input.loaded else None
        return
    assert isinstance(state.conversation, SessionConversation)  # noqa: S101 - needs_history says so
    if session is None:
        raise UserError(f"this run belongs to the session {state.conversation.session_id!r}: give it that session")
    own = [to_stored_item(run, entry.item) for entry in state.transcript[: state.stored] if not entry.hidden]
    window = state.conversation.window
    items = await session.get_items(limit=window + len(own))
    if items[max(len(items) - len(own), 0) :] != own and not _has_limit(session):
        items = await session.get_items()
    start = _find_own_items(items, own)
    if start is not None:
        before = items[max(start - window, 0) : start]
        if len(before) == window or not run.model_input.uses_history_positions(state):
            run.model_input.start(drop_unpaired(before))
            return
    # A write may have arrived although it seemed to fail: what is yet to be stored is the run's own as well.
    others, first = _separate_own_items(items, [to_stored_item(run, entry.item) for entry in state.transcript])
    run.model_input.start(drop_unpaired(others))
    run.model_input.skip_stored(state, min(first, state.stored, state.turn_start if state.calls else state.stored))


async def record_outcome(run: ActiveRun, outcome: Outcome) -> None:
    """Take an outcome in, and store what is settled by it: in the session, or with the run's own keeper."""
    if run.recorder is not None:
        await run.recorder.record_outcome(run, outcome)
        return
    run.state = apply_outcome(run.state, outcome)
    if run.session is not None:
        await store_new_items(run, failing=getattr(outcome, "error", None) is not None)


async def store_new_items(run: ActiveRun, *, failing: bool = False) -> None:
    """Store what is new and settled, in one batch. Nothing is ever stored twice."""
    session, state = run.session, run.state
    if session is None or state.stored == len(state.transcript):
        return
    until = get_storable_length(state, failing=failing, unchecked=is_tool_output_guarded(run))
    if until <= state.stored:
        return
    batch = [to_stored_item(run, entry.item) for entry in state.transcript[state.stored : until] if not entry.hidden]
    if batch:
        await _add_batch(run, session, batch, key=f"{state.run_id}:{state.stored}:{until}")
    run.state = apply_outcome(run.state, ItemsStored(until))
    run.resumed = False
    if until > state.turn_start:
        await _compact_session(run, session)


def is_tool_output_guarded(run: ActiveRun) -> bool:
    """Whether what tools return may be the final output, and somebody judges that."""
    agent = run.current_agent
    return agent.tool_use_behavior != "run_llm_again" and bool(run.config.output_guardrails or agent.output_guardrails)


async def _add_batch(run: ActiveRun, session: Session, batch: list[Item], *, key: str) -> None:
    if run.resumed:
        batch = await _drop_stored_prefix(session, batch)
    if not batch:
        return
    if accepts_keys(session):
        async with track_append(session, batch):
            await session.add_items(batch, key=key)  # type: ignore[call-arg]
        return
    await session.add_items(batch)


async def _drop_stored_prefix(session: Session, batch: list[Item]) -> list[Item]:
    """What of the batch the session does not have at its end already.

    A write that failed may have arrived all the same, and the run may have come further since: no key tells that.
    """
    latest = await session.get_items(limit=len(batch))
    for there in range(len(latest), 0, -1):
        if latest[len(latest) - there :] == batch[:there]:
            return batch[there:]
    return batch


async def _compact_session(run: ActiveRun, session: Session) -> None:
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
        run.context.usage.add(_parse_usage(compaction.usage))


def _parse_usage(usage: Any) -> Usage:
    return parse_usage(usage)


def as_items(input: str | Sequence[Item]) -> list[Item]:
    """The input of a run as items."""
    return [{"content": input, "role": "user"}] if isinstance(input, str) else list(input)


def validate_input(input: Any) -> str | list[Item]:
    """The input, made of JSON only and shared with nobody, or a typed error that says where it is wrong."""
    try:
        encoded = encode_items(as_items(input) if isinstance(input, str) else input)
    except InvalidItem as error:
        raise UserError(f"the input of a run must be a text or a list of items: {error}") from error
    return input if isinstance(input, str) else [decode_item(data) for data in encoded]


def _make_input_entries(items: Sequence[Item]) -> tuple[TranscriptEntry, ...]:
    return tuple(TranscriptEntry(item, "given") for item in items)


def to_stored_item(run: ActiveRun, item: Item) -> Item:
    """The item as a session has it."""
    return strip_reasoning_id(run.state, item)


def _has_limit(session: Session) -> bool:
    settings = getattr(session, "session_settings", None)
    return settings is not None and settings.limit is not None


def _separate_own_items(items: list[Item], own: list[Item]) -> tuple[list[Item], int]:
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
    return others, next((unit.start for unit in group_into_units(own) if first in unit), len(own))


def _find_own_items(items: list[Item], own: list[Item]) -> int | None:
    """Where this run's own items begin: their latest whole occurrence."""
    if not own:
        return len(items)
    for start in range(len(items) - len(own), -1, -1):
        if items[start] == own[0] and items[start : start + len(own)] == own:
            return start
    return None


class CachedHistory:
    """What a session shows, as far as nobody else has written since: its head says so.

    Only for sessions that are ``steady``: what they show changes with their head and not by itself. The items are
    shared between runs; nobody may change them.
    """

    def __init__(self, tape: str | None, version: int, items: list[Item]) -> None:
        self.tape, self.version, self.items, self.paired_items = tape, version, items, drop_unpaired(items)
        self.pending_writes = 0

    def append_batch(self, batch: Sequence[Item]) -> None:
        """A batch of ours was added."""
        # The first batch of a session makes its tape, whose name is not known here: it is then read again.
        self.version += 1
        self.items += batch
        if drop_unpaired(batch) == list(batch):
            self.paired_items += batch
        else:
            self.paired_items = drop_unpaired(self.items)


_cache: "WeakKeyDictionary[Any, CachedHistory]" = WeakKeyDictionary()


async def read_history(session: Any) -> tuple[list[Item], int]:
    """What a model may be shown of the session's history, and how many items there are. The list is the caller's."""
    if not _is_cacheable(session):
        items = await session.get_items()
        return drop_unpaired(items), len(items)
    place = await _read_position(session)
    known = _cache.get(session)
    if known is None or (known.tape, known.version, len(known.items)) != place:
        items = await session.get_items() if place[2] else []
        if place[2] and (len(items) != place[2] or await _read_position(session) != place):
            return drop_unpaired(items), len(items)
        known = _cache[session] = CachedHistory(place[0], place[1], items)
    return list(known.paired_items), len(known.items)


@asynccontextmanager
async def track_append(session: Any, batch: Sequence[Item]) -> AsyncIterator[None]:
    """Keep up with a batch that is added meanwhile. Two at the same time cannot be told apart, nor can a failed one."""
    known = _cache.get(session) if _is_cacheable(session) else None
    if known is None:
        yield
        return
    known.pending_writes += 1
    alone = known.pending_writes == 1
    try:
        yield
    except BaseException:
        _cache.pop(session, None)
        raise
    finally:
        known.pending_writes -= 1
    if alone and not known.pending_writes:
        known.append_batch(batch)
    else:
        _cache.pop(session, None)


async def _read_position(session: Any) -> tuple[str | None, int, int]:
    """Where the history stands. The tape is another one when it was cleared meanwhile."""
    record = await session.read_verified_record()
    return (None, 0, 0) if record is None else (record.tape, record.version, record.length)


def _is_cacheable(session: Any) -> bool:
    settings = getattr(session, "session_settings", None)
    return bool(getattr(session, "is_cacheable", False)) and (settings is None or settings.limit is None)
