"""Read a session's history for a run, and store the run's items in the session.

What the model is shown, what is new and has to be stored, and the whole history are three different things: the first
is kept by :class:`~standfast.runs._loop.model_input.ModelInputBuilder`, the second by the run's state, the third is in
the session.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakKeyDictionary

from standfast.agents.errors import UserError
from standfast.base.errors import HistoryMoved, InvalidItem
from standfast.base.ids import new_id
from standfast.base.item_pairs import drop_unpaired, group_into_units
from standfast.base.items import Item, decode_item, encode_items
from standfast.history.openai.compaction import is_openai_responses_compaction_aware_session
from standfast.history.openai.conversations import OpenAIConversationsSession, get_content_key
from standfast.history.session import Session, accepts_keys, with_run_context
from standfast.models.interface import parse_usage
from standfast.runs._loop.model_input import arrange_input, strip_reasoning_id
from standfast.runs.active_run import ActiveRun
from standfast.runs.core.state import InputSelection, SessionConversation, State, TranscriptEntry
from standfast.runs.core.steps import InputTaken, ItemsStored, Outcome
from standfast.runs.core.transitions import apply_outcome, get_storable_length


async def take_input(run: ActiveRun) -> InputTaken:
    """Return the outcome that adds the input to the transcript: at the start the run's input, later the staged input.

    At the start the session's history is read, too.
    """
    state = run.state
    if state.input_taken:
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
    if run.is_session_new:
        history, window = list[Item](), 0
    elif limit is None:
        history, window = await read_history(session)
    else:
        read = await with_run_context(session.get_items)(limit=limit)
        history, window = drop_unpaired(read), len(read)
    run.model_input.start(strip_message_ids(session, history), policy=state.reasoning_item_id_policy)
    conversation = SessionConversation(session.session_id, window=window, limit=limit)
    callback = run.config.session_input_callback
    if callback is None:
        return InputTaken(_make_input_entries(new), conversation)
    arranged = await arrange_input(callback, run.model_input.history, new)
    selection = InputSelection(arranged.selection, len(arranged.new_items))
    return InputTaken(_make_input_entries(arranged.new_items), conversation, selection)


async def load_history(run: ActiveRun) -> None:
    """Make sure that ``run.model_input`` has the history before this run. Does nothing if it is loaded.

    Normally that is everything before the run's own items. If those are no longer contiguous, or items before them are
    missing (because of other writers, compaction or clearing), every item that is not the run's own counts as history.
    """
    state, session = run.state, run.session
    if not run.model_input.needs_history(state):
        run.model_input.start([]) if not run.model_input.loaded else None
        return
    assert isinstance(state.conversation, SessionConversation)  # noqa: S101 - checked by needs_history
    if session is None:
        raise UserError(f"this run belongs to the session {state.conversation.session_id!r}: pass that session")
    own = list_stored_items(state)
    window = state.conversation.window
    items = await with_run_context(session.get_items)(limit=window + len(own))
    expected = _make_comparable(session, own)
    if _make_comparable(session, items[max(len(items) - len(own), 0) :]) != expected and not _has_limit(session):
        items = await with_run_context(session.get_items)()
    start = _find_own_items(_make_comparable(session, items), expected)
    if start is not None:
        before = items[max(start - window, 0) : start]
        if len(before) == window or not run.model_input.uses_history_positions(state):
            run.model_input.start(
                strip_message_ids(session, drop_unpaired(before)), policy=state.reasoning_item_id_policy
            )
            return
    # A write that raised an error may still have been applied: items yet to be stored are the run's own as well.
    others, first = _separate_own_items(items, [to_stored_item(run, entry.item) for entry in state.transcript])
    run.model_input.start(strip_message_ids(session, drop_unpaired(others)), policy=state.reasoning_item_id_policy)
    run.model_input.skip_stored(state, min(first, state.stored, state.turn_start if state.calls else state.stored))


def strip_message_ids(session: Session, items: list[Item]) -> list[Item]:
    """Return the items of a conversation at OpenAI without the ids of answers, others as they are.

    With its id an answer is taken for the stored one, which the API refuses without the reasoning before it.
    """
    if not isinstance(session, OpenAIConversationsSession):
        return items
    return [
        {name: part for name, part in item.items() if name != "id"} if item.get("role") == "assistant" else item
        for item in items
    ]


async def record_outcome(run: ActiveRun, outcome: Outcome, call: Any = None) -> None:
    """Apply an outcome to the run and store the items that are final now: by the run's recorder or in its session."""
    if run.recorder is not None:
        await run.recorder.record_outcome(run, outcome, call)
        return
    run.state = apply_outcome(run.state, outcome)
    if run.session is not None:
        await store_new_items(run, failing=getattr(outcome, "error", None) is not None)


async def store_new_items(run: ActiveRun, *, failing: bool = False) -> None:
    """Store the new and final items in one batch. No item is stored twice."""
    session, state = run.session, run.state
    if session is None or state.stored == len(state.transcript):
        return
    until = get_storable_length(state, failing=failing, outputs_guarded=is_tool_output_guarded(run))
    if until <= state.stored:
        return
    batch = [to_stored_item(run, entry.item) for entry in state.transcript[state.stored : until] if not entry.hidden]
    if batch:
        await _add_batch(run, session, batch, key=f"{state.run_id}:{state.stored}:{until}")
    run.state = apply_outcome(run.state, ItemsStored(until))
    run.resumed = False
    if until > state.turn_start:
        await _compact_session(run, session)


async def store_made_calls(run: ActiveRun) -> None:
    """Store the calls and outputs of a turn that was cancelled when all of them had been made."""
    if run.recorder is None and run.state.calls and all(call.status == "done" for call in run.state.calls):
        await store_new_items(run, failing=True)


def is_tool_output_guarded(run: ActiveRun) -> bool:
    """Return whether tool outputs can become the final output and output guardrails check it."""
    agent = run.current_agent
    return agent.tool_use_behavior != "run_llm_again" and bool(run.config.output_guardrails or agent.output_guardrails)


async def _add_batch(run: ActiveRun, session: Session, batch: list[Item], *, key: str) -> None:
    if run.resumed:
        batch = await _drop_stored_prefix(session, batch)
    if not batch:
        return
    if accepts_keys(session):
        async with track_append(session, batch):
            await with_run_context(session.add_items)(batch, key=key)  # type: ignore[call-arg]
        return
    await with_run_context(session.add_items)(batch)


async def _drop_stored_prefix(session: Session, batch: list[Item]) -> list[Item]:
    """Return the part of the batch that the session does not have at its end already.

    A write that raised an error may still have been applied. The key of the batch does not help here: the resumed run
    has advanced and writes another batch.
    """
    latest = await with_run_context(session.get_items)(limit=len(batch))
    for stored in range(len(latest), 0, -1):
        if latest[len(latest) - stored :] == batch[:stored]:
            return batch[stored:]
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
        run.context.usage.add(parse_usage(compaction.usage))


def as_items(input: str | Sequence[Item]) -> list[Item]:
    """Return the input of a run as a list of items."""
    return [{"content": input, "role": "user"}] if isinstance(input, str) else list(input)


def validate_input(input: Any) -> str | list[Item]:
    """Return a copy of the input; raise :class:`UserError` with the path of the first value that is not JSON."""
    try:
        encoded = encode_items(as_items(input) if isinstance(input, str) else input)
    except InvalidItem as error:
        raise UserError(f"the input of a run must be a string or a list of items: {error}") from error
    return input if isinstance(input, str) else [decode_item(data) for data in encoded]


def _make_input_entries(items: Sequence[Item]) -> tuple[TranscriptEntry, ...]:
    return tuple(TranscriptEntry(item, "given") for item in items)


def to_stored_item(run: ActiveRun, item: Item) -> Item:
    """Return the item as it is stored in a session."""
    return strip_reasoning_id(item, run.state.reasoning_item_id_policy)


def list_stored_items(state: State) -> list[Item]:
    """Return the items that the run has stored in its session so far, as they are stored."""
    stored = [entry.item for entry in state.transcript[: state.stored] if not entry.hidden]
    return [strip_reasoning_id(item, state.reasoning_item_id_policy) for item in stored]


def _make_comparable(session: Session, items: list[Item]) -> Sequence[object]:
    """Return the items in a form in which they equal themselves after they have been stored."""
    return [get_content_key(item) for item in items] if isinstance(session, OpenAIConversationsSession) else items


def _has_limit(session: Session) -> bool:
    settings = getattr(session, "session_settings", None)
    return settings is not None and settings.limit is not None


def _separate_own_items(items: list[Item], own: list[Item]) -> tuple[list[Item], int]:
    """Return the history without this run's own items, and the index of the first own item that is still there.

    The index is moved back to the start of its pair of call and output. Own items that are missing from the history are
    taken to be covered by other items, for example a summary; without any, the index is 0 and the model is shown
    all own items.
    """
    others, end, first = list(items), len(items), len(own)
    for index in range(len(own) - 1, -1, -1):
        found = next((place for place in range(end - 1, -1, -1) if items[place] == own[index]), None)
        if found is not None:
            del others[found]
            end, first = found, index
    if not others:
        return others, 0
    return others, next((unit.start for unit in group_into_units(own) if first in unit), len(own))


def _find_own_items(items: Sequence[object], own: Sequence[object]) -> int | None:
    """Return where this run's own items start: their latest complete occurrence."""
    if not own:
        return len(items)
    for start in range(len(items) - len(own), -1, -1):
        if items[start] == own[0] and items[start : start + len(own)] == own:
            return start
    return None


class CachedHistory:
    """The items of a session at a version, so that a long history is not read again for every run in this process.

    Only for sessions that are ``is_cacheable``: their items change only when their head changes. The items are shared
    between runs and must not be modified.
    """

    def __init__(self, tape: int | None, version: int, items: list[Item]) -> None:
        self.tape, self.version, self.items, self.paired_items = tape, version, items, drop_unpaired(items)
        self.pending_writes = 0

    def append_batch(self, batch: Sequence[Item]) -> None:
        """Add a batch that this process has written."""
        # The first batch creates the session and its tape. This entry keeps ``tape=None``, so the next read misses.
        self.version += 1
        self.items += batch
        if drop_unpaired(batch) == list(batch):
            self.paired_items += batch
        else:
            self.paired_items = drop_unpaired(self.items)


_cache: "WeakKeyDictionary[Any, CachedHistory]" = WeakKeyDictionary()


async def read_history(session: Any) -> tuple[list[Item], int]:
    """Return the history without unpaired items, and the number of all items. The list belongs to the caller."""
    if not _is_cacheable(session):
        items = await with_run_context(session.get_items)()
        return drop_unpaired(items), len(items)
    cache_key = await _read_cache_key(session)
    cached = _cache.get(session)
    if cached is None or (cached.tape, cached.version, len(cached.items)) != cache_key:
        tape, version, length = cache_key
        items = await with_run_context(session.get_items)() if length else []
        if length and (len(items) != length or await _read_cache_key(session) != cache_key):
            return drop_unpaired(items), len(items)
        cached = _cache[session] = CachedHistory(tape, version, items)
    return list(cached.paired_items), len(cached.items)


@asynccontextmanager
async def track_append(session: Any, batch: Sequence[Item]) -> AsyncIterator[None]:
    """Add the batch to the cached history when the block has written it.

    After a failed write, or two at the same time, the stored order is unknown and the cache entry is dropped.
    """
    cached = _cache.get(session) if _is_cacheable(session) else None
    if cached is None:
        yield
        return
    cached.pending_writes += 1
    alone = cached.pending_writes == 1
    try:
        yield
    except BaseException:
        _cache.pop(session, None)
        raise
    finally:
        cached.pending_writes -= 1
    if alone and not cached.pending_writes:
        cached.append_batch(batch)
    else:
        _cache.pop(session, None)


async def _read_cache_key(session: Any) -> tuple[int | None, int, int]:
    """Return tape, version and length, which change whenever the items do.

    A session that was deleted and created again has another tape, so that its versions are not mistaken for earlier
    ones.
    """
    record = await session.read_verified_record()
    return (None, 0, 0) if record is None else (record.tape, record.version, record.length)


def _is_cacheable(session: Any) -> bool:
    settings = getattr(session, "session_settings", None)
    if not getattr(session, "is_cacheable", False) or (settings is not None and settings.limit is not None):
        return False
    # The head says nothing about what methods of a program's subclass return and write.
    methods = (type(session).get_items, type(session).add_items)
    return all(method.__module__.startswith("standfast.") for method in methods)


async def remove_own_items(session: Session, own: list[Item]) -> bool:
    """Remove exactly the items ``own`` from the end of the history, and return whether they were there.

    Sessions with ``rewind`` remove them in one commit. From others they are popped one by one; when popping fails or
    returns another item, the popped items are added again in their order.
    """
    if not own:
        return True
    if hasattr(session, "rewind") and hasattr(session, "head"):
        return await _remove_atomically(session, own)
    if await with_run_context(session.get_items)(limit=len(own)) != own:
        return False
    popped: list[Item] = []
    try:
        for expected in reversed(own):
            item = await with_run_context(session.pop_item)()
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
        if head.length < len(own) or await with_run_context(session.get_items)(limit=len(own)) != own:
            return False
        try:
            await session.rewind(head.length - len(own), expected=head)
        except HistoryMoved:
            continue
        return True


async def _restore_items(session: Session, popped: list[Item]) -> None:
    if popped:
        await with_run_context(session.add_items)(popped[::-1])


async def read_session_input(run: ActiveRun, session: Session | None) -> list[Item]:
    """Return the items of the session that the run shows the model, if its conversation is in a session."""
    if session is None or not isinstance(run.state.conversation, SessionConversation):
        return []
    run.session = session
    await load_history(run)
    return list(run.model_input.history)
