"""An encrypted history, over a standfast store or over any other session."""

from collections.abc import Sequence

import msgspec

from standfast.base.clock import Clock, system_clock
from standfast.base.errors import HistoryMoved, HistoryTampered, InvalidInput, NotFound, WrongKey
from standfast.base.ids import validate_name
from standfast.base.items import encode_item
from standfast.history.codec import DecodedRecord
from standfast.history.encryption.codec import EncryptingCodec, digest_generations, get_key_id
from standfast.history.encryption.envelope import EnvelopeSession
from standfast.history.integrity import IntegrityReport, build_report
from standfast.history.session import Session
from standfast.history.stored_session import StoredSession
from standfast.history.wrapper import SessionWrapper, find_stored_session
from standfast.store.contract import Generation, Op, Page, Row, Splice, ViewUpdate
from standfast.store.tape import TapeSpan, join_spans


class EncryptedSession(SessionWrapper):
    """The history of ``underlying_session``, encrypted and sealed with ``encryption_key``.

    Over a session in a standfast store everything works as it does without encryption, searching by a scan.
    A record that was moved, replayed, altered or replaced by plaintext is left out and named by :meth:`check`;
    when the history itself was reordered, cut, extended or exchanged, everything but :meth:`check` and
    :meth:`reseal` raises :class:`HistoryTampered`. See :mod:`standfast.history.encryption.codec` for what is protected.
    Over any other session the items are wrapped one by one, with weaker promises:
    see :class:`~standfast.history.encryption.envelope.EnvelopeSession`.

    ``encryption_key`` is a secret of at least 16 characters, best a random one such as
    ``secrets.token_urlsafe(32)``: it is not stretched as a password would have to be. Given several, the first
    encrypts and all decrypt. Items older than ``ttl`` seconds are not shown, and neither are those that belong
    with them; they stay stored until :meth:`purge_expired`. Without ``ttl`` nothing expires.

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
    ) -> None:
        validate_name("session id", session_id)
        if session_id != underlying_session.session_id:
            raise InvalidInput(
                f"session id {session_id!r} is not the id of the underlying session, {underlying_session.session_id!r}"
            )
        if isinstance(underlying_session, SessionWrapper):
            raise InvalidInput(
                f"{type(underlying_session).__name__} cannot be encrypted from outside, it would be bypassed:"
                " wrap the EncryptedSession in it instead"
            )
        self.underlying_session = underlying_session  # kept alive: it may own the backend
        self.codec = EncryptingCodec(encryption_key, ttl=ttl, cipher=cipher, clock=clock)
        plain = find_stored_session(underlying_session)
        if plain is None:
            super().__init__(session_id, EnvelopeSession(underlying_session, self.codec))
            return
        if plain.codec.position_bound:
            raise InvalidInput(f"session {session_id!r} is encrypted already")
        sealed = StoredSession(session_id, plain.backend, codec=self.codec, owner=plain.owner, clock=clock)
        sealed.session_settings = plain.session_settings
        super().__init__(session_id, sealed)

    async def purge_expired(self) -> int:
        """Destroy what has expired, and say how many items that were. Does nothing without a ``ttl``.

        If anything has, in the history or in an earlier generation of it, what is left of the history is written
        anew, in one commit. All earlier generations and the keys of batches go. A fork keeps what it shares;
        purge it as well. The database may hold freed bytes, which are encrypted, until it uses the space again.
        """
        stored = self.require_stored_session("purge_expired")
        while True:
            page = await stored.read_page()
            if page is None:
                return 0
            readable, _ = stored.decode_rows(page.rows)
            kept = stored.drop_expired(readable)
            views = [readable, *[await self.read_generation(stored, entry) for entry in await stored.generations()]]
            expired = {get_location(entry) for view in views for entry in view}
            expired -= {get_location(entry) for view in views for entry in stored.drop_expired(view)}
            if not expired:
                return 0
            if await self.rewrite(stored, page, kept):
                return len(expired)

    async def read_generation(self, stored: StoredSession, generation: Generation) -> list[DecodedRecord]:
        """What an earlier generation holds, expired or not; nothing when it is gone by now."""
        try:
            page = await stored.read_page(generation=generation.number)
        except NotFound:
            return []
        return stored.decode_rows(page.rows if page else [])[0]

    async def rekey(self) -> None:
        """Write everything anew with the first key, so that the other keys are no longer needed.

        One commit. The earlier generations and the keys of batches go, since they cannot be carried over.
        Forks have seals of their own and are to be rekeyed themselves. Unreadable records are kept as they are.
        """
        stored = self.require_stored_session("rekey")
        while True:
            page = await stored.read_page()
            if page is None or await self.rewrite(stored, page, stored.decode_rows(page.rows)[0]):
                return

    async def rewrite(self, stored: StoredSession, page: Page, kept: list[DecodedRecord]) -> bool:
        """Replace all that is stored by these items and the unreadable records; false if somebody was faster."""
        emptied = stored.make_erased_record(page.record)
        entries: list[DecodedRecord | Row] = [*kept, *(row for row, _ in stored.decode_rows(page.rows)[1] if row.data)]
        entries.sort(key=lambda entry: (entry if isinstance(entry, Row) else entry.row).position)
        tape, start = emptied.tape, emptied.next_seq
        add = tuple(
            self.encode_for_location(entry, tape=tape, seq=seq) for seq, entry in enumerate(entries, start=start)
        )
        ops: list[Op] = [stored.build_erase_op(page.record)]
        if add:
            ops.append(stored.seal_splice(emptied, Splice(session_id=self.session_id, add=add, tape=tape)))
        try:
            await stored.backend.commit(*ops)
        except HistoryMoved:
            return False
        return True

    def encode_for_location(self, entry: DecodedRecord | Row, *, tape: int, seq: int) -> bytes:
        """A record for another place, as old as it was."""
        if isinstance(entry, Row):
            return entry.data or b""
        written_at = entry.written_at or 0
        return self.codec.encrypt_record(encode_item(entry.item), tape=tape, seq=seq, written_at=written_at)

    async def reseal(self, *, lost_keys: bool = False) -> IntegrityReport:
        """Accept the history as it is stored now, and say what was wrong with it.

        For someone who has the key and has decided to go on after :class:`HistoryTampered`. Records that do not
        authenticate are taken out of the view; an earlier generation still shows where they stood. Read the
        result: items of another history under the same key, and an order that somebody else chose, cannot be
        told from the genuine ones once the seal is broken. Nothing is destroyed, and nothing happens to a
        history that is in order.

        Records that need a key which was not given are :class:`WrongKey`, unless ``lost_keys`` says that they
        are to be given up as well.
        """
        stored = self.require_stored_session("reseal")
        while True:
            page = await stored.backend.read(self.session_id)
            earlier = await stored.backend.list_generations(self.session_id)
            aside = await stored.backend.list_quarantined(self.session_id)
            problem = self.find_tampering(page, earlier)
            report = build_report(self.session_id, page, self.codec, quarantined=aside, tampered=problem)
            if page is None or not (problem or report.corrupt):
                return report
            if not lost_keys:
                self.codec.check_keys(page.rows)
            try:
                await stored.backend.commit(
                    self.build_accepting_splice(page, stored.decode_rows(page.rows)[0], earlier)
                )
            except HistoryMoved:
                continue
            return report

    def find_tampering(self, page: Page | None, generations: list[Generation]) -> str | None:
        try:
            if page is not None:
                self.codec.verify(page.record)
                self.codec.verify_generations(page.record, generations)
        except (HistoryTampered, WrongKey) as problem:
            return str(problem)
        return None

    def build_accepting_splice(
        self, page: Page, readable: list[DecodedRecord], generations: list[Generation]
    ) -> Splice:
        """The present view without what cannot be read, sealed without regard to the seal it has."""
        record = page.record
        shown = join_spans(TapeSpan(entry.row.tape, entry.row.seq, entry.row.seq + 1) for entry in readable)
        after = msgspec.structs.replace(
            record, version=record.version + 1, closed=shown, open_from=record.next_seq, length=len(readable)
        )
        before = Generation(record.generation, record.length, record.view, record.next_seq, 0)
        keys = {key_id for entry in readable if (key_id := get_key_id(entry.row))}
        return Splice(
            session_id=self.session_id,
            view_update=ViewUpdate(closed=shown, open_from=record.next_seq, length=len(readable), archive=True),
            expected=record.version,
            tape=record.tape,
            seal=self.codec.build_seal(after, keys=keys, past=digest_generations([*generations, before])),
        )


def get_location(entry: DecodedRecord) -> tuple[int, int]:
    return entry.row.tape, entry.row.seq
