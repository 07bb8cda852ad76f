"""A session in a store, over any backend and codec."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self

import msgspec

from standfast.base.conversations import forget_conversation
from standfast.base.errors import AlreadyExists, BlobsMissing, HistoryMoved, InvalidInput, NotFound, WorkspaceMoved
from standfast.base.ids import new_id, validate_name
from standfast.base.items import Item, encode_items
from standfast.base.text import extract_text, extract_words
from standfast.history import session_workspaces, view_updates
from standfast.history.reader import StoredSessionReader, validate_generation, validate_head, validate_position
from standfast.history.session import SessionABC, make_contention_error
from standfast.store.operations import BatchKey, Erase, Op, Quarantine, RequireVersion, Splice, ViewUpdate
from standfast.store.records import EMPTY_HEAD, Generation, Head, Row, SessionRecord
from standfast.store.tape import compute_length, generate_tape_id, slice_spans
from standfast.workspaces.branches import build_deletion_ops
from standfast.workspaces.versions import list_output_ids, list_workspaces, name_session_workspace

_MAX_ATTEMPTS = 100


class StoredSession(StoredSessionReader, SessionABC):
    """A session in a store.

    Every change is one atomic commit: readers in other processes see all of it or nothing, even if this process is
    killed. Objects are cheap and hold no resources that need closing.
    """

    async def add_items(self, items: Sequence[Item], *, key: str | None = None, expected: Head | None = None) -> None:
        """Append a batch atomically; its items are contiguous and in order.

        With ``key``, writing the same batch again is a no-op, so that a caller can retry after a lost response.
        With ``expected``, raise :class:`HistoryMoved` and write nothing if the head has changed.
        """
        validate_head(expected)
        data = encode_items(items)
        if not data:
            await self.check_head(expected)
            return
        batch_key = None if key is None else BatchKey(validate_name("key", key), self.codec.digest(data))
        words = self.extract_words(items)

        async def append(record: SessionRecord | None) -> list[Op]:
            return [self.build_append(record, data, words=words, key=batch_key), *view_updates.build_claim(self)]

        await self.commit_with_retry(append, expected=expected, read_first=self.codec.location_bound)

    async def pop_item(self) -> Item | None:
        """Remove and return the latest item; ``None`` if the history is empty.

        Unreadable records after it are quarantined, not destroyed: see :meth:`check`. If the item is the output of a
        call of Python, the variables and files of the session are taken back to where they were before that call.
        """
        window, attempt = 8, 0
        while True:
            page = await self.read_page(last=window)
            if page is None or not page.rows:
                return None
            readable, unreadable = self.decode_page(page)
            visible = self.drop_expired(readable)
            if not visible and page.rows[0].position > 0:
                window *= 4
                continue
            if not visible and readable:
                return None
            end = visible[-1].row.position if visible else 0
            ops = await self.build_pop_ops(page.record, end, [row for row in unreadable if row[0].position >= end])
            if visible and list_output_ids([visible[-1].item]):
                ops += await session_workspaces.rewind_workspaces(self, end)
            try:
                await self.backend.commit(*ops)
            except (HistoryMoved, WorkspaceMoved):
                await wait_before_retry(attempt)
                attempt += 1
                continue
            return visible[-1].item if visible else None

    async def clear_session(self) -> None:
        """Erase the history, its earlier generations and its workspace. Forks keep the items in their views."""

        async def erase(record: SessionRecord | None) -> list[Op]:
            workspace = await build_deletion_ops(self.backend, *self.list_workspaces())
            if not self.codec.location_bound:
                return [Erase(session_id=self.session_id), *workspace]
            if record is None:
                return [Erase(session_id=self.session_id, expected=0), *workspace]
            return [self.build_erase_op(record), *workspace]

        await self.commit_with_retry(erase, expected=None, read_first=self.codec.location_bound)
        forget_conversation(self.conversation_key)

    # --- beyond the session protocol ------------------------------------------------------------

    async def replace_items(self, items: Sequence[Item], *, expected: Head | None = None) -> Head:
        """Replace the history by ``items`` in one commit. The previous items stay as an earlier generation."""
        return await self.splice_items(0, None, items, expected=expected)

    async def splice_items(
        self,
        start: int,
        stop: int | None,
        items: Sequence[Item],
        *,
        expected: Head | None = None,
        rewind_workspace: bool = False,
    ) -> Head:
        """Replace the items from position ``start`` to ``stop`` by ``items``, as slice assignment does.

        The items around them are not rewritten. The previous history stays as an earlier generation. With
        ``rewind_workspace`` the workspace of the session becomes what it was after the items before ``start``.
        """
        validate_head(expected)
        validate_position(start)
        if stop is not None:
            validate_position(stop)
        data = encode_items(items)

        async def splice(record: SessionRecord | None) -> list[Op]:
            record = record or self.make_empty_record()
            if expected is not None and expected.version != record.version:
                raise HistoryMoved(self.session_id, expected=expected, found=record.head)
            end = record.length if stop is None else stop
            if not 0 <= start <= end <= record.length:
                raise InvalidInput(
                    f"positions {start} to {end} are out of range: the history has {record.length} items"
                )
            replacement = await self.build_replacement(record, start, end, data, words=self.extract_words(items))
            return [replacement, *(await session_workspaces.rewind_workspaces(self, start) if rewind_workspace else ())]

        return await self.commit_with_retry(splice, expected=expected, read_first=True)

    async def rewind(self, to: int, *, expected: Head | None = None) -> Head:
        """Keep only the first ``to`` items. The previous history stays as an earlier generation.

        The variables and files of the session's Python are rewound with it, if they are in the store.
        """
        return await self.splice_items(to, None, [], expected=expected, rewind_workspace=True)

    def list_workspaces(self) -> tuple[str, str]:
        """Return the keys under which the session has variables and files."""
        return list_workspaces(name_session_workspace(self.session_id))

    async def restore(self, generation: int, *, expected: Head | None = None) -> Head:
        """Undo a rewind or replacement: show that generation again, followed by the items added since.

        Variables and files of the session's Python follow: they become those of that generation, and the calls of
        the items added since are run again on them, if the sandbox has no network, when they are used next.
        """
        validate_head(expected)
        validate_generation(generation)
        while True:
            head, generations = await self.read_head_and_generations()
            chosen = next((entry for entry in generations if entry.number == generation), None)
            if chosen is None:
                raise NotFound("generation", generation)
            try:
                return await self.restore_generation(chosen, expected=expected or head)
            except HistoryMoved:
                if expected is not None:
                    raise

    async def restore_generation(self, generation: Generation, *, expected: Head) -> Head:
        """Show a generation again if the session is at ``expected``."""

        async def restore(record: SessionRecord | None) -> list[Op]:
            record = record or self.make_empty_record()
            update = view_updates.build_restoration(record, generation)
            splice = Splice(session_id=self.session_id, view_update=update, tape=record.tape)
            tags = await self.read_tags(*view_updates.list_span_ends(generation.spans), generation=generation.number)
            workspace = await session_workspaces.restore_workspaces(self, generation, record.tape)
            return [self.complete_splice(record, splice, tags=tags), *workspace]

        return await self.commit_with_retry(restore, expected=expected, read_first=True)

    async def build_replacement(
        self, record: SessionRecord, start: int, stop: int, data: Sequence[bytes], *, words: tuple[str, ...] = ()
    ) -> Splice:
        """Return the operation that replaces a range of the verified ``record``. It fits only this version."""
        update = view_updates.build_replacement_update(record, start, stop, len(data))
        added = self.codec.encode(data, tape=record.tape, seq=record.next_seq, before=record)
        splice = Splice(session_id=self.session_id, add=added, words=words, view_update=update, tape=record.tape)
        return self.complete_splice(record, splice, tags=await self.read_tags(start - 1))

    async def fork(
        self,
        at: int | None = None,
        session_id: str | None = None,
        *,
        generation: int | None = None,
    ) -> Self:
        """Return a new session that starts with the first ``at`` items of this one, by default all. Copies no items.

        With ``generation`` they are items of that earlier generation. Both sessions change independently afterwards;
        the fork remains readable when its parent is deleted. Variables and files of the session's Python are forked
        with it, as they were at that point, if they are in the store.
        """
        validate_generation(generation)
        if at is not None:
            validate_position(at)
        child = self.open_sibling(new_id("session") if session_id is None else session_id)
        for attempt in range(_MAX_ATTEMPTS):
            ops = await self.build_fork_ops(child, at, generation=generation)
            try:
                await self.backend.commit(*ops)
            except (HistoryMoved, WorkspaceMoved, BlobsMissing):
                await wait_before_retry(attempt)
                continue
            return child
        raise make_contention_error(self.session_id, _MAX_ATTEMPTS)

    async def build_fork_ops(
        self, child: "StoredSession", at: int | None, *, generation: int | None = None, with_workspace: bool = True
    ) -> list[Op]:
        """Return the operations that create ``child`` as a fork of this session at its present version."""
        record = await self.read_verified_record()
        if record is None:
            raise NotFound("session", self.session_id)
        spans = record.view if generation is None else await self.get_generation_spans(generation)
        length = compute_length(spans)
        end = length if at is None else at
        if not 0 <= end <= length:
            raise InvalidInput(f"cannot fork at {end}: the history has {length} items")
        existing = await self.backend.get_session(child.session_id)
        if existing is not None and existing.version:
            raise AlreadyExists("session", child.session_id)
        shown = slice_spans(spans, 0, end)
        first = view_updates.build_fork_splice(
            record, shown, session_id=child.session_id, tape=existing.tape if existing else generate_tape_id()
        )
        # The seal of the parent lists the keys that its items need, and the child shows some of these items.
        before = msgspec.structs.replace(child.make_empty_record(first), seal=record.seal)
        tags = await self.read_tags(*view_updates.list_span_ends(shown), generation=generation)
        ops: list[Op] = [
            RequireVersion(self.session_id, record.version),
            child.complete_splice(before, first, tags=tags),
            *view_updates.build_claim(child),
        ]
        if with_workspace:
            outputs = None if end == length and generation is None else (end, generation)
            ops += await session_workspaces.fork_workspaces(self, child.session_id, outputs)
        return ops

    # --- shared parts ---------------------------------------------------------------------------

    @property
    def is_cacheable(self) -> bool:
        """Whether the items change only together with the head. Items of an encrypted session may expire."""
        return not self.codec.location_bound

    @property
    def stored_session(self) -> "StoredSession":
        """This session. Wrappers have the same attribute, which leads through all of them to the stored session."""
        return self

    @property
    def is_indexed(self) -> bool:
        """Whether the backend's index finds the words of this session."""
        return self.backend.indexes_words and not self.codec.location_bound

    def open_sibling(self, session_id: str) -> Self:
        """Return another session of the same store, with the settings of this one."""
        sibling = type(self)(
            session_id,
            self.backend,
            settings=self.session_settings,
            codec=self.codec,
            owner=self.owner,
            clock=self.clock,
        )
        sibling.claims = self.claims
        return sibling

    def make_empty_record(self, first: Splice | None = None) -> SessionRecord:
        """Return the record of a session before its first write."""
        return SessionRecord(
            session_id=self.session_id,
            tape=first.tape if first else generate_tape_id(),
            version=0,
            length=0,
            next_seq=0,
            open_from=0,
            created_at=0,
            updated_at=0,
        )

    def extract_words(self, items: Sequence[Item]) -> tuple[str, ...]:
        """Return the words of each item, for the index of the backend; none if it has no index."""
        return tuple(" ".join(extract_words(extract_text(item))) for item in items) if self.is_indexed else ()

    def build_append(
        self,
        record: SessionRecord | None,
        data: Sequence[bytes],
        *,
        words: tuple[str, ...] = (),
        key: BatchKey | None = None,
    ) -> Splice:
        """Return the operation that appends a batch to the session, which a plain codec need not have read."""
        tape, seq = (record.tape, record.next_seq) if record else (generate_tape_id(), 0)
        added = self.codec.encode(data, tape=tape, seq=seq, before=record)
        splice = Splice(session_id=self.session_id, add=added, tape=tape, words=words, key=key)
        return self.complete_splice(record, splice)

    def complete_splice(
        self,
        record: SessionRecord | None,
        splice: Splice,
        *,
        tags: Mapping[tuple[int, int], bytes] | None = None,
    ) -> Splice:
        """Return the splice with the owner and, if the codec or a view update needs them, expected version and seal."""
        if splice.owner is None and self.owner is not None:
            splice = msgspec.structs.replace(splice, owner=self.owner)
        if not self.codec.location_bound and splice.view_update is None:
            return splice
        record = record or self.make_empty_record(splice)
        update = splice.view_update or ViewUpdate(record.closed, record.open_from, record.length + len(splice.add))
        after = view_updates.make_updated_record(record, update, added=len(splice.add))
        seal = self.codec.seal(after, replaced=record if update.archive else None, added=splice.add, tags=tags)
        return msgspec.structs.replace(splice, expected=record.version, seal=seal)

    def make_erased_record(self, record: SessionRecord) -> SessionRecord:
        """Return the record of the session after everything was erased."""
        return msgspec.structs.replace(
            record, version=record.version + 1, length=0, closed=(), open_from=record.next_seq, seal=None
        )

    def build_erase_op(self, record: SessionRecord) -> Erase:
        """Return the operation that erases the session if it is as in the record."""
        seal = self.codec.seal(self.make_erased_record(record))
        return Erase(session_id=self.session_id, expected=record.version, seal=seal)

    async def commit_with_retry(
        self,
        build_ops: Callable[[SessionRecord | None], Awaitable[list[Op]]],
        *,
        expected: Head | None,
        read_first: bool,
    ) -> Head:
        """Commit the operations that ``build_ops`` returns for the current record.

        After a lost race against another writer, build and commit them again, unless ``expected`` is given.
        ``build_ops`` gets ``None`` if the session does not exist or if ``read_first`` is false.
        """
        for attempt in range(_MAX_ATTEMPTS):
            record = await self.read_verified_record() if read_first else None
            ops = await build_ops(record)
            if expected is not None:
                current = record.head if record else EMPTY_HEAD
                if read_first and current.version != expected.version:
                    self.raise_unless_keyed(ops, expected, current)
                ops = [
                    msgspec.structs.replace(op, expected=expected.version)
                    if isinstance(op, (Splice, Erase)) and op.session_id == self.session_id
                    else op
                    for op in ops
                ]
            try:
                outcome = (await self.backend.commit(*ops))[0]
            except HistoryMoved as moved:
                if expected is not None:
                    raise HistoryMoved(self.session_id, expected=expected, found=moved.found) from None
                await wait_before_retry(attempt)
                continue
            except WorkspaceMoved:
                await wait_before_retry(attempt)
                continue
            return outcome if isinstance(outcome, Head) else EMPTY_HEAD
        raise make_contention_error(self.session_id, _MAX_ATTEMPTS)

    async def check_head(self, expected: Head | None) -> None:
        """Raise :class:`HistoryMoved` if the head is not the expected one."""
        if expected is not None and (current := await self.head()).version != expected.version:
            raise HistoryMoved(self.session_id, expected=expected, found=current)

    def raise_unless_keyed(self, ops: list[Op], expected: Head, current: Head) -> None:
        """Raise :class:`HistoryMoved`, except for a keyed batch: only the store knows if that was written before."""
        if not any(isinstance(op, Splice) and op.key for op in ops):
            raise HistoryMoved(self.session_id, expected=expected, found=current)

    async def build_pop_ops(self, record: SessionRecord, end: int, unreadable: list[tuple[Row, str]]) -> list[Op]:
        """Return the operations that cut the history at ``end`` and quarantine the unreadable rows after it."""
        splice = Splice(session_id=self.session_id, view_update=view_updates.build_cut(record, end), tape=record.tape)
        return [
            self.complete_splice(record, splice, tags=await self.read_tags(end - 1)),
            *(
                Quarantine(session_id=self.session_id, tape=row.tape, seq=row.seq, reason=reason)
                for row, reason in unreadable
            ),
        ]


async def wait_before_retry(attempt: int) -> None:
    """Sleep for a random time that grows with ``attempt``, so that competing writers collide less often."""
    if attempt:
        await asyncio.sleep(random.uniform(0, 0.001 * 2 ** min(attempt, 7)))
