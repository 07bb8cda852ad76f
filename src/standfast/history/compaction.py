"""Sessions that replace their oldest items by a summary when the history grows too long."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import msgspec

from standfast.agents.types import maybe_await
from standfast.base.errors import HistoryMoved, InvalidInput, NotFound, Unsupported
from standfast.base.item_pairs import PairingProblem, find_unpaired, group_into_units
from standfast.base.items import Item, encode_items
from standfast.base.log import get_logger
from standfast.base.text import extract_text
from standfast.base.validation import is_integer
from standfast.history.codec import DecodedRecord
from standfast.history.session import make_contention_error
from standfast.history.stored_session import StoredSession
from standfast.history.wrapper import SessionWrapper
from standfast.store.records import EMPTY_HEAD, Generation, Head
from standfast.store.tape import TapeSpan, find_position

Summary: TypeAlias = str | Item | Sequence[Item]
Summariser: TypeAlias = Callable[[list[Item]], Summary | Awaitable[Summary]]
TriggerFunction: TypeAlias = Callable[[list[Item]], bool | Awaitable[bool]]

_MAX_ATTEMPTS = 10
_log = get_logger(__name__)


class Trigger(msgspec.Struct, frozen=True, kw_only=True):
    """Compact when the history has more than ``items`` items or more than ``tokens`` tokens."""

    items: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        limits = [value for value in (self.items, self.tokens) if value is not None]
        if not limits or any(not is_integer(value) or value < 1 for value in limits):
            raise InvalidInput("a Trigger needs items or tokens, an integer >= 1")


def estimate_tokens(item: Item) -> int:
    """Estimate the number of tokens of an item from the length of its text. Images are not counted."""
    return 4 + len(extract_text(item).encode("utf-8", "replace")) // 4


@dataclass(frozen=True, kw_only=True)
class HistoryCompaction:
    """When and how the oldest items of a history are replaced by a summary.

    ``summarise`` gets the oldest items and returns a text, an item or a list of items. A text becomes a user message,
    so that words of a user gain no authority by being summarised. The latest ``keep_last`` items are kept, and more if
    a call would be separated from its output or reasoning from its result.
    """

    summarise: Summariser
    trigger: Trigger | TriggerFunction
    keep_last: int = 10
    count_tokens: Callable[[Item], int] = estimate_tokens

    def __post_init__(self) -> None:
        if not is_integer(self.keep_last) or self.keep_last < 0:
            raise InvalidInput(f"keep_last must be an integer >= 0, got {self.keep_last!r}")
        if isinstance(self.trigger, Trigger):
            if self.trigger.items is not None and self.trigger.items <= self.keep_last:
                raise InvalidInput(
                    f"keep_last={self.keep_last} must be less than the trigger of {self.trigger.items} items,"
                    " or there is nothing to compact"
                )
        elif not callable(self.trigger):
            raise InvalidInput(f"trigger must be a Trigger or a function, not {type(self.trigger).__name__}")

    async def select_oldest(self, entries: list[DecodedRecord], *, force: bool = False) -> list[DecodedRecord]:
        """Return the oldest items, which a summary may replace without separating a pair.

        None if the trigger has not been passed, unless ``force``, or if a summary would be no shorter.
        """
        items = [entry.item for entry in entries]
        if not force and not await self.is_triggered(items):
            return []
        end = min(max(len(items) - self.keep_last, 0), find_unfinished_turn(items))
        cut = max((unit.stop for unit in group_into_units(items) if unit.stop <= end), default=0)
        return entries[:cut] if cut > 1 else []

    async def is_triggered(self, items: list[Item]) -> bool:
        """Return whether these items are to be compacted."""
        if not isinstance(self.trigger, Trigger):
            return bool(await maybe_await(self.trigger(items)))
        max_items, max_tokens = self.trigger.items, self.trigger.tokens
        if max_items is not None and len(items) > max_items:
            return True
        return max_tokens is not None and sum(map(self.count_tokens, items)) > max_tokens

    async def make_summary(self, oldest: Sequence[DecodedRecord]) -> list[Item]:
        """Return the summary as items; raise the errors of ``summarise``, or :class:`InvalidInput`."""
        return validate_summary(await maybe_await(self.summarise([entry.item for entry in oldest])))


class CompactingSession(SessionWrapper):
    """A session that replaces its oldest items by a summary when an append passes the trigger.

    The arguments are those of :class:`HistoryCompaction`; any limit in the settings is ignored. The replacement is one
    commit. The replaced items stay as an earlier generation, and :meth:`undo_compaction` shows them again.

    An append never fails because of its compaction: the error is logged, and the next append tries again. Callers that
    pass ``expected`` must read the head again after each append, because a compaction changes it too.

    It wraps a session in a standfast store, encrypted or not. The summary of an encrypted history is encrypted, and
    its ``ttl`` counts from the time of the summary.
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
                f"CompactingSession needs a session in a standfast store, got {type(underlying).__name__}:"
                " other sessions cannot replace part of their history atomically"
            )
        self.policy = HistoryCompaction(
            summarise=summarise, trigger=trigger, keep_last=keep_last, count_tokens=count_tokens
        )
        super().__init__(underlying.session_id, underlying)
        self.target_session = stored
        self.compaction_lock = asyncio.Lock()
        self.token_count = TokenCount(EMPTY_HEAD, 0)

    async def add_items(
        self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None, wrapper: Any = None
    ) -> None:
        """Append a batch, then compact if the trigger has been passed."""
        await super().add_items(items, key=key, expected=expected, wrapper=wrapper)
        if self.compaction_lock.locked():  # another task is compacting; this one need not wait for it
            return
        try:
            if await self.may_need_compaction(items):
                await self.compact()
        except Exception:  # noqa: BLE001 - the append has succeeded, so it must not raise
            _log.exception("session %r could not be compacted; the next append tries again", self.session_id)

    async def compact(self, *, force: bool = False) -> Head | None:
        """Compact if the trigger has been passed, or unconditionally with ``force``, and return the new head.

        Return ``None`` if there was nothing to do. Unlike an append, this raises the errors of the summariser; the
        history is unchanged then.
        """
        async with self.compaction_lock:
            for _ in range(_MAX_ATTEMPTS):
                head, entries = await self.read_all()
                oldest = await self.policy.select_oldest(entries, force=force)
                if not oldest:
                    return None
                summary = await self.policy.make_summary(oldest)
                new_head = await self.replace_with_summary(oldest, summary, head)
                if new_head is not None:
                    return new_head
        raise make_contention_error(self.session_id, _MAX_ATTEMPTS)

    async def undo_compaction(self) -> Head:
        """Show again the items that the latest compaction replaced, followed by the items added since.

        Call it again to undo the compaction before that. Raise :class:`NotFound` if the history does not begin with a
        summary. The next append that passes the trigger compacts again.
        """
        while True:
            head, generations = await self.target_session.read_head_and_generations()
            first = await self.target_session.read_page(start=0, stop=1)
            if first is None or not first.rows:
                raise NotFound("compaction of session", self.session_id)
            if first.record.head != head:
                continue
            summary = TapeSpan(first.rows[0].tape, first.rows[0].seq, first.rows[0].seq + 1)
            generation = find_replaced_generation(summary, generations) if summary.tape == first.record.tape else None
            if generation is None:
                raise NotFound("compaction of session", self.session_id)
            try:
                return await self.target_session.restore(generation.number, expected=head)
            except HistoryMoved:
                continue

    # --- shared parts ---------------------------------------------------------------------------

    async def may_need_compaction(self, added: Sequence[Item]) -> bool:
        """Return True if the trigger may have been passed. Avoids reading the history where possible."""
        trigger = self.policy.trigger
        if not isinstance(trigger, Trigger):
            return True
        head = await self.target_session.head()
        if trigger.items is not None and head.length > trigger.items:
            return True
        if trigger.tokens is None:
            return False
        before, tokens = self.token_count.head, self.token_count.tokens
        if head == Head(before.version + 1, before.length + len(added)):  # this append was the only change
            tokens += sum(map(self.policy.count_tokens, added))
        else:
            head, entries = await self.read_all()
            tokens = sum(self.policy.count_tokens(entry.item) for entry in entries)
        self.token_count = TokenCount(head, tokens)
        return tokens > trigger.tokens

    async def read_all(self) -> tuple[Head, list[DecodedRecord]]:
        """Return the visible items and a head to commit against. The head is read first: it may be too old, not new."""
        head = await self.target_session.head()
        return head, await self.target_session.read_latest(None)

    async def replace_with_summary(self, oldest: list[DecodedRecord], summary: list[Item], head: Head) -> Head | None:
        """Replace the oldest items by the summary. Appends in the meantime do not prevent it.

        Return ``None`` if the history no longer begins with these items.
        """
        rows = [entry.row for entry in oldest]
        for _ in range(_MAX_ATTEMPTS):
            try:
                return await self.target_session.splice_items(0, rows[-1].position + 1, summary, expected=head)
            except HistoryMoved:
                head, entries = await self.read_all()
                if [entry.row for entry in entries[: len(oldest)]] != rows:
                    return None
        return None

    def rewrap(self, stored: StoredSession) -> Self:
        clone = super().rewrap(stored)
        clone.target_session = stored
        clone.compaction_lock = asyncio.Lock()
        clone.token_count = TokenCount(EMPTY_HEAD, 0)
        return clone


class TokenCount(msgspec.Struct, frozen=True):
    """The number of tokens of a history at a head."""

    head: Head
    tokens: int


def find_unfinished_turn(items: Sequence[Item]) -> int:
    """Return the index of the first item in the last turn that still waits for its counterpart, else the length.

    Calls of earlier turns that have no output will never get one and are ignored.
    """
    latest = max((index for index, item in enumerate(items) if item.get("role") == "user"), default=-1)
    waiting = [
        problem.index
        for problem in find_unpaired(items)
        if problem.index > latest and problem.problem is not PairingProblem.OUTPUT_WITHOUT_CALL
    ]
    return min(waiting, default=len(items))


def validate_summary(summary: object) -> list[Item]:
    """Return the summary as items, or raise :class:`InvalidInput` if it is empty or contains half of a pair."""
    if isinstance(summary, str):
        if not summary.strip():
            raise InvalidInput("the summary is empty")
        return [{"role": "user", "content": f"[Summary of the earlier conversation]\n{summary}"}]
    items = [summary] if isinstance(summary, dict) else summary
    encode_items(items)
    if not isinstance(items, Sequence) or not items:
        raise InvalidInput("the summary is empty")
    if find_unpaired(items):
        raise InvalidInput("the summary contains an unpaired item, such as a call without its output")
    return list(items)


def find_replaced_generation(first: TapeSpan, generations: Sequence[Generation]) -> Generation | None:
    """Return the generation that was replaced when ``first`` was written, or ``None`` if it was not a replacement."""
    for entry in generations:
        if entry.resumes_at > first.start:  # the oldest such generation was archived by the commit that wrote it
            position = find_position(entry.spans, first.tape, first.start)
            return entry if position is None else None
    return None
