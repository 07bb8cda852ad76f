"""Histories that replace their oldest part by a summary of it when they grow too long."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, TypeAlias

import msgspec

from standfast.base.errors import HistoryMoved, InvalidInput, NotFound, Unsupported
from standfast.base.items import Item, encode_items, extract_text
from standfast.base.pairing import PairingProblem, find_unpaired, group_into_units
from standfast.history.codec import DecodedRecord
from standfast.history.stored_session import StoredSession
from standfast.history.wrapper import SessionWrapper
from standfast.store.contract import EMPTY_HEAD, Generation, Head
from standfast.store.tape import TapeSpan, find_position

Summary: TypeAlias = str | Item | Sequence[Item]
Summariser: TypeAlias = Callable[[list[Item]], Summary | Awaitable[Summary]]
TriggerFunction: TypeAlias = Callable[[list[Item]], bool | Awaitable[bool]]

_MAX_ATTEMPTS = 10
_log = logging.getLogger(__name__)


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """Compact when the history has more than so many items, or more than so many tokens."""

    items: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        given = [value for value in (self.items, self.tokens) if value is not None]
        if not given or any(isinstance(value, bool) or not isinstance(value, int) or value < 1 for value in given):
            raise InvalidInput("a trigger needs a number of items or of tokens, 1 or more")


def estimate_tokens(item: Item) -> int:
    """About as many as a model would count, from the length of the text alone; pictures count nothing."""
    return 4 + len(extract_text(item).encode("utf-8", "replace")) // 4


class CompactingSession(SessionWrapper):
    """Replaces the oldest items of a history by a summary once an append passes the trigger.

    ``summarise`` is given the oldest items, all of them whatever limit the session has, and answers with a text,
    an item or several; a text becomes a user message, so that what users said gains no authority by being
    summarised. The ``keep_last`` latest items stay as they are, and more where a call would be separated from its
    output or reasoning from what it led to. The replacement is one commit. What was replaced stays as an earlier
    generation, and :meth:`undo_compaction` shows it again.

    An append never fails because of its compaction: that is logged, and the next append tries again. Whoever
    passes ``expected`` has to read the head again after each append, since a compaction changes it too.

    It wraps a session in a standfast store, encrypted or not. The summary of an encrypted history is encrypted;
    its own age counts for a ``ttl``, not that of what it summarises.
    """

    def __init__(
        self,
        underlying: StoredSession | SessionWrapper,
        *,
        summarise: Summariser,
        trigger: Trigger | TriggerFunction,
        keep_last: int = 10,
        count_tokens: Callable[[Item], int] = estimate_tokens,
    ) -> None:
        stored = getattr(underlying, "stored_session", None)
        if not isinstance(stored, StoredSession):
            raise Unsupported(
                f"CompactingSession needs a session in a standfast store, which {type(underlying).__name__} is not:"
                " no other can replace part of a history in one step"
            )
        if isinstance(keep_last, bool) or not isinstance(keep_last, int) or keep_last < 0:
            raise InvalidInput(f"keep_last must be a whole number of 0 or more, not {keep_last!r}")
        if isinstance(trigger, Trigger):
            if trigger.items is not None and trigger.items <= keep_last:
                raise InvalidInput(f"a trigger of {trigger.items} items and keep_last={keep_last} leave nothing to do")
        elif not callable(trigger):
            raise InvalidInput(f"trigger must be a Trigger or a function, not {type(trigger).__name__}")
        super().__init__(underlying.session_id, underlying)
        self.target_session = stored
        self.summarise = summarise
        self.trigger = trigger
        self.keep_last = keep_last
        self.count_tokens = count_tokens
        self.compaction_lock = asyncio.Lock()
        self.token_count = TokenCount(EMPTY_HEAD, 0)

    async def add_items(
        self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None, wrapper: Any = None
    ) -> None:
        """Append one batch as ever; then compact if it is time."""
        await super().add_items(items, key=key, expected=expected)
        if self.compaction_lock.locked():  # by another task, which this one need not wait for
            return
        try:
            if await self.may_need_compaction(items):
                await self.compact()
        except Exception:  # noqa: BLE001 - the append is done, and nothing here may make it look as if it were not
            _log.exception("session %r could not be compacted; the next append tries again", self.session_id)

    async def compact(self, *, force: bool = False) -> Head | None:
        """Compact now if the trigger says so, or in any case with ``force``; ``None`` when there was nothing to do.

        Unlike an append this raises what the summariser raises. The history is then as it was.
        """
        async with self.compaction_lock:
            for _ in range(_MAX_ATTEMPTS):
                head, entries = await self.read_all()
                if not force and not await self.is_triggered([entry.item for entry in entries]):
                    return None
                part = self.select_oldest(entries)
                if len(part) < 2:  # a summary of one item would be no shorter
                    return None
                summary = validate_summary(await maybe_await(self.summarise([entry.item for entry in part])))
                replaced = await self.replace_with_summary(part, summary, head)
                if replaced is not None:
                    return replaced
        raise HistoryMoved(self.session_id, expected="a quiet moment", found="constant change")

    async def undo_compaction(self) -> Head:
        """Show again what the latest compaction replaced, and after it all that was added since.

        Call it again to undo the one before. :class:`NotFound` when the history does not begin with a summary
        that replaced something. An append that passes the trigger compacts anew.
        """
        while True:
            head, earlier = await self.target_session.read_head_and_generations()
            first = await self.target_session.read_page(start=0, stop=1)
            if first is None or not first.rows:
                raise NotFound("compaction of session", self.session_id)
            if first.record.head != head:
                continue
            written = TapeSpan(first.rows[0].tape, first.rows[0].seq, first.rows[0].seq + 1)
            generation = find_replaced_generation(written, earlier) if written.tape == first.record.tape else None
            if generation is None:
                raise NotFound("compaction of session", self.session_id)
            try:
                return await self.target_session.restore(generation.number, expected=head)
            except HistoryMoved:
                continue

    # --- shared parts ---------------------------------------------------------------------------

    async def may_need_compaction(self, added: Sequence[Item]) -> bool:
        """Whether the trigger may have been passed, found out without reading the history where possible."""
        if not isinstance(self.trigger, Trigger):
            return True
        head = await self.target_session.head()
        if self.trigger.items is not None and head.length > self.trigger.items:
            return True
        if self.trigger.tokens is None:
            return False
        before, tokens = self.token_count.head, self.token_count.tokens
        if head == Head(before.version + 1, before.length + len(added)):  # nothing but what was just appended
            tokens += sum(map(self.count_tokens, added))
        else:
            head, entries = await self.read_all()
            tokens = sum(self.count_tokens(entry.item) for entry in entries)
        self.token_count = TokenCount(head, tokens)
        return tokens > self.trigger.tokens

    async def is_triggered(self, items: list[Item]) -> bool:
        if not isinstance(self.trigger, Trigger):
            return bool(await maybe_await(self.trigger(items)))
        most_items, most_tokens = self.trigger.items, self.trigger.tokens
        if most_items is not None and len(items) > most_items:
            return True
        return most_tokens is not None and sum(map(self.count_tokens, items)) > most_tokens

    async def read_all(self) -> tuple[Head, list[DecodedRecord]]:
        """All that is shown, and a head that writes only succeed with while it is still true."""
        head = await self.target_session.head()
        return head, await self.target_session.read_latest(None)

    def select_oldest(self, entries: list[DecodedRecord]) -> list[DecodedRecord]:
        """What a summary may replace."""
        items = [entry.item for entry in entries]
        most = min(max(len(items) - self.keep_last, 0), find_unfinished_turn(items))
        cut = max((unit.stop for unit in group_into_units(items) if unit.stop <= most), default=0)
        return entries[:cut]

    async def replace_with_summary(self, part: list[DecodedRecord], summary: list[Item], head: Head) -> Head | None:
        """Put the summary in place of the part, if need be after appends that came in meanwhile.

        ``None`` when the part itself is no longer what the history begins with.
        """
        places = [entry.row for entry in part]
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await self.target_session.splice_items(0, places[-1].position + 1, summary, expected=head)
            except HistoryMoved:
                head, entries = await self.read_all()
                if [entry.row for entry in entries[: len(part)]] != places:
                    return None
        return None

    def rewrap(self, stored: StoredSession) -> Self:
        twin = super().rewrap(stored)
        twin.target_session = stored
        twin.compaction_lock = asyncio.Lock()
        twin.token_count = TokenCount(EMPTY_HEAD, 0)
        return twin


class TokenCount(msgspec.Struct, frozen=True):
    """How many tokens a history had when it was last looked at."""

    head: Head
    tokens: int


def find_unfinished_turn(items: Sequence[Item]) -> int:
    """Where the turn begins that still waits for an output; the length when none does.

    A call that was left unanswered in an earlier turn is not waited for.
    """
    latest = max((index for index, item in enumerate(items) if item.get("role") == "user"), default=-1)
    waiting = [
        problem.index
        for problem in find_unpaired(items)
        if problem.index > latest and problem.problem is not PairingProblem.OUTPUT_WITHOUT_CALL
    ]
    return min(waiting, default=len(items))


def validate_summary(summary: object) -> list[Item]:
    """A summary as items, or :class:`InvalidInput` for one that would leave the model with less than nothing."""
    if isinstance(summary, str):
        if not summary.strip():
            raise InvalidInput("the summary is empty")
        return [{"role": "user", "content": f"[Summary of the earlier conversation]\n{summary}"}]
    items = [summary] if isinstance(summary, dict) else summary
    encode_items(items)
    if not isinstance(items, Sequence) or not items:
        raise InvalidInput("the summary is empty")
    if find_unpaired(items):
        raise InvalidInput("the summary holds a call without its output, or one of the other kinds of half a pair")
    return list(items)


async def maybe_await(value: Any) -> Any:
    """What a function answered that may be a plain or an async one."""
    return await value if inspect.isawaitable(value) else value


def find_replaced_generation(first: TapeSpan, generations: Sequence[Generation]) -> Generation | None:
    """What stood where a history now begins with ``first``, if that was written as a replacement."""
    for entry in generations:
        if entry.resumes_at > first.start:  # the first to go on behind it was made when it was written
            shown = find_position(entry.spans, first.tape, first.start)
            return entry if shown is None else None
    return None
