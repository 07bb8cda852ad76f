"""Encrypted sessions, over a standfast store or over any other session."""

from collections.abc import Sequence
from typing import Any

import msgspec

from standfast.base.errors import HistoryMoved, HistoryTampered, InvalidInput, NotFound, WrongKey
from standfast.base.ids import validate_name
from standfast.base.items import Item, encode_item
from standfast.base.time import Clock, system_clock
from standfast.base.validation import validate_integer
from standfast.history.codec import DecodedRecord
from standfast.history.encryption.codec import NO_LINK, EncryptingCodec, digest_generations, get_key_id, get_tag
from standfast.history.encryption.envelope_session import EnvelopeSession
from standfast.history.encryption.openai_agents import SealedSession
from standfast.history.integrity import IntegrityReport, build_report
from standfast.history.session import Session
from standfast.history.stored_session import StoredSession
from standfast.history.wrapper import SessionWrapper, find_stored_session
from standfast.store.operations import Annotate, Erase, Op, Splice, ViewUpdate
from standfast.store.records import Generation, HistoryPage, Row
from standfast.store.tape import TapeSpan, join_spans


class EncryptedSession(SessionWrapper):
    """A session that encrypts the items of ``underlying_session`` and seals its history with ``encryption_key``.

    Over a session in a standfast store all methods work as without encryption; a search decrypts and scans. If the
    history was reordered, truncated, extended or exchanged, all methods except :meth:`check` and :meth:`reseal` raise
    :class:`HistoryTampered`. A record that is missing, or was moved, replayed, altered or replaced, makes
    :meth:`get_items` raise it too; with ``strict=False`` the record is skipped, and only :meth:`check` reports it.
    See :mod:`standfast.history.encryption.codec` for what is protected. Over any other session the items are encrypted
    one by one, with weaker guarantees: see :class:`~standfast.history.encryption.envelope_session.EnvelopeSession`.

    ``encryption_key`` is a secret of at least 16 characters; a shorter one is accepted with a warning. Use a random one
    such as ``secrets.token_urlsafe(32)``: the key derivation is not meant for passwords. Of several keys, the first
    encrypts and all decrypt. Items older than ``ttl`` seconds are not shown; a call and its output expire together.
    They stay stored until :meth:`purge_expired`. Without ``ttl`` nothing expires.

    A history that openai-agents encrypted with the same key is taken over on first use. In tables of openai-agents that
    are not adopted, items are encrypted as openai-agents does it, and both programs can use the history.

    With ``max_scan_items`` a read of more items is a ``RuntimeError``.

    To compact an encrypted history, wrap this session in a ``CompactingSession``, not the other way round.
    """

    def __init__(
        self,
        session_id: str,
        underlying_session: Session,
        encryption_key: str | Sequence[str],
        ttl: float | None = None,
        *,
        cipher: str = "aes-gcm",
        clock: Clock = system_clock,
        strict: bool = True,
        max_scan_items: int | None = None,
    ) -> None:
        self.max_scan_items = validate_integer("max_scan_items", max_scan_items, minimum=1, optional=True)
        validate_name("session id", session_id)
        if session_id != underlying_session.session_id:
            raise InvalidInput(
                f"session id {session_id!r} differs from the id of the underlying session,"
                f" {underlying_session.session_id!r}"
            )
        if isinstance(underlying_session, SessionWrapper):
            raise InvalidInput(
                f"EncryptedSession cannot wrap {type(underlying_session).__name__}: it reads and writes the underlying"
                " store directly, so the wrapper would have no effect. Wrap the EncryptedSession in"
                f" {type(underlying_session).__name__} instead"
            )
        self.underlying_session = underlying_session  # referenced because it may own the backend
        self.codec = EncryptingCodec(
            encryption_key, ttl=ttl, cipher=cipher, clock=clock, strict=strict, allow_short=True
        )
        plain = find_stored_session(underlying_session)
        if plain is None:
            super().__init__(session_id, EnvelopeSession(underlying_session, self.codec))
            return
        if plain.codec.location_bound:
            raise InvalidInput(f"session {session_id!r} is encrypted already")
        encrypted = SealedSession(session_id, plain.backend, codec=self.codec, owner=plain.owner, clock=clock)
        encrypted.session_settings = plain.session_settings
        super().__init__(session_id, encrypted)

    @property
    def ttl(self) -> float | None:
        """After how many seconds an item expires."""
        return self.codec.ttl

    async def get_items(
        self, limit: int | None = None, *, generation: int | None = None, wrapper: Any = None
    ) -> list[Item]:
        """Return the last ``limit`` items, or all. Raises ``RuntimeError`` if that is more than ``max_scan_items``."""
        budget = self.max_scan_items
        wanted = limit if limit is not None else getattr(self.session_settings, "limit", None)
        if budget is None or (wanted is not None and wanted <= budget):
            return await super().get_items(limit, generation=generation, wrapper=wrapper)
        items = await super().get_items(budget, generation=generation, wrapper=wrapper)
        if len(items) == budget:
            raise RuntimeError(
                f"session {self.session_id!r} may have more than {budget} items (max_scan_items): raise the limit"
            )
        return items

    async def purge_expired(self) -> int:
        """Delete expired items and return their number. Does nothing without a ``ttl``.

        If the history or an earlier generation contains expired items, the remaining history is rewritten in one
        commit. All earlier generations and idempotency keys are deleted. Forks keep the items that they share; purge
        them separately. The database may hold the encrypted bytes until it reuses the space.
        """
        stored = await self.require_sealed_session("purge_expired")
        while True:
            page = await stored.read_page()
            if page is None:
                return 0
            readable, _ = stored.decode_page(page)
            current = stored.drop_expired(readable)
            views = [readable, *[await self.read_generation(stored, entry) for entry in await stored.generations()]]
            expired = {get_location(entry) for view in views for entry in view}
            expired -= {get_location(entry) for view in views for entry in stored.drop_expired(view)}
            if not expired:
                return 0
            if await self.rewrite(stored, page, current):
                return len(expired)

    async def require_sealed_session(self, method: str) -> StoredSession:
        """Return the stored session, or raise :class:`Unsupported` if the history cannot have a seal."""
        stored = self.require_stored_session(method)
        if isinstance(stored, SealedSession):
            await stored.require_seal(method)
        return stored

    async def read_generation(self, stored: StoredSession, generation: Generation) -> list[DecodedRecord]:
        """Return the records of an earlier generation, expired or not; none if it no longer exists."""
        try:
            page = await stored.read_page(generation=generation.number)
        except NotFound:
            return []
        return stored.decode_page(page)[0]

    async def rekey(self) -> None:
        """Rewrite the history with the first key in one commit, so that the other keys are no longer needed.

        Earlier generations and idempotency keys cannot be carried over and are deleted. Forks have seals of their own;
        rekey them separately. Unreadable records are kept as they are. Raise :class:`WrongKey` if the history needs a
        key that was not passed, and :class:`Unsupported` over a session that is not in a standfast store. A concurrent
        write is not lost: the history is read and rewritten again.
        """
        stored = await self.require_sealed_session("rekey")
        while True:
            page = await stored.read_page()
            if page is None or await self.rewrite(stored, page, stored.decode_page(page)[0]):
                return

    async def rewrite(self, stored: StoredSession, page: HistoryPage, records: list[DecodedRecord]) -> bool:
        """Replace the stored history by ``records`` and the unreadable rows. Return False after a lost race."""
        erased = stored.make_erased_record(page.record)
        unreadable = [row for row, _ in stored.decode_page(page)[1] if row.data]
        entries: list[DecodedRecord | Row] = [*records, *unreadable]
        entries.sort(key=lambda entry: (entry if isinstance(entry, Row) else entry.row).position)
        tape, start = erased.tape, erased.next_seq
        add = self.encode_for_tape(entries, tape=tape, start=start)
        ops: list[Op] = [stored.build_erase_op(page.record)]
        if add:
            ops.append(stored.complete_splice(erased, Splice(session_id=self.session_id, add=add, tape=tape)))
        try:
            await stored.backend.commit(*ops)
        except HistoryMoved:
            return False
        return True

    def encode_for_tape(self, entries: Sequence[DecodedRecord | Row], *, tape: int, start: int) -> tuple[bytes, ...]:
        """Return the records encrypted for another place, with their original times of writing."""
        records: list[bytes] = []
        for seq, entry in enumerate(entries, start=start):
            if isinstance(entry, Row):
                records.append(entry.data or b"")
                continue
            # A record that was kept although it cannot be read has no tag to link to.
            readable = bool(records) and not isinstance(entries[len(records) - 1], Row)
            link = get_tag(records[-1]) if readable else NO_LINK
            written_at, data = entry.written_at or 0, encode_item(entry.item)
            records.append(self.codec.encrypt_record(data, tape=tape, seq=seq, written_at=written_at, link=link))
        return tuple(records)

    async def reseal(self, *, lost_keys: bool = False) -> IntegrityReport:
        """Accept the history as it is stored now, and return a report of what was wrong with it.

        Use it after :class:`HistoryTampered`, to continue with the stored items. Records that fail authentication are
        removed from the view; an earlier generation still shows their positions. Read the result: once the seal is
        broken, a changed order and items from another history with the same key cannot be detected. Nothing is deleted,
        and an intact history does not change; only after an older copy of the session's row, the history is rewritten,
        without earlier generations.

        Records that need a key which was not passed raise :class:`WrongKey`; with ``lost_keys`` they are removed from
        the view.
        """
        stored = await self.require_sealed_session("reseal")
        while True:
            page = await stored.backend.read(self.session_id)
            generations = await stored.backend.list_generations(self.session_id)
            quarantined = await stored.backend.list_quarantined(self.session_id)
            problem = self.find_tampering(page, generations)
            report = build_report(self.session_id, page, self.codec, quarantined=quarantined, tampered=problem)
            if page is None or not (problem or report.corrupt):
                return report
            if not lost_keys:
                self.codec.check_keys(page.rows)
            readable = stored.decode_page(page)[0]
            ops = (
                self.build_new_session(stored, page, readable)
                if page.overrun
                else [self.build_accepting_splice(page, readable, generations)]
            )
            try:
                await stored.backend.commit(*ops)
            except HistoryMoved:
                continue
            return report

    def build_new_session(self, stored: StoredSession, page: HistoryPage, readable: list[DecodedRecord]) -> list[Op]:
        """Return the operations that write the records to a new tape: the old one has records after its end."""
        record, first = page.record, stored.make_empty_record()
        add = self.encode_for_tape(readable, tape=first.tape, start=0)
        splice = Splice(session_id=self.session_id, add=add, tape=first.tape, owner=record.owner)
        return [
            Erase(session_id=self.session_id, expected=record.version, forget=True),
            stored.complete_splice(first, splice),
            Annotate(session_id=self.session_id, metadata=record.metadata),
        ]

    def find_tampering(self, page: HistoryPage | None, generations: list[Generation]) -> str | None:
        """Return why the history does not match its seal, or ``None`` if it does."""
        try:
            if page is not None:
                self.codec.verify_page(page)
                self.codec.verify_generations(page.record, generations)
        except (HistoryTampered, WrongKey) as problem:
            return str(problem)
        return None

    def build_accepting_splice(
        self, page: HistoryPage, readable: list[DecodedRecord], generations: list[Generation]
    ) -> Splice:
        """Return the splice that shows only the readable records, with a new seal that ignores the stored one."""
        record = page.record
        view = join_spans(TapeSpan(entry.row.tape, entry.row.seq, entry.row.seq + 1) for entry in readable)
        after = msgspec.structs.replace(
            record, version=record.version + 1, closed=view, open_from=record.next_seq, length=len(readable)
        )
        before = Generation(record.generation, record.length, record.view, record.next_seq, 0)
        keys = {key_id for entry in readable if (key_id := get_key_id(entry.row))}
        return Splice(
            session_id=self.session_id,
            view_update=ViewUpdate(closed=view, open_from=record.next_seq, length=len(readable), archive=True),
            expected=record.version,
            tape=record.tape,
            seal=self.codec.build_seal(
                after,
                keys=keys,
                past=digest_generations([*generations, before]),
                tags={get_location(entry): get_tag(entry.row.data or b"") for entry in readable},
            ),
        )


def get_location(entry: DecodedRecord) -> tuple[int, int]:
    return entry.row.tape, entry.row.seq
