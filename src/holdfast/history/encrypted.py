"""An encrypted history, over a holdfast store or over any other session."""

from collections.abc import Sequence

import msgspec

from holdfast.base.clock import Clock, system_clock
from holdfast.base.errors import HistoryMoved, HistoryTampered, InvalidInput, NotFound, WrongKey
from holdfast.base.ids import checked_name
from holdfast.base.items import encode_item
from holdfast.history.checking import Report, findings
from holdfast.history.codec import Decoded
from holdfast.history.contract import Session
from holdfast.history.envelopes import EnvelopeSession
from holdfast.history.sealing import SealingCodec, key_id_of, past_with
from holdfast.history.session import StoredSession
from holdfast.history.wrapping import SessionWrapper, stored_in
from holdfast.store.contract import Generation, Op, Page, Row, Shape, Splice
from holdfast.store.view import Span, join


class EncryptedSession(SessionWrapper):
    """The history of ``underlying_session``, encrypted and sealed with ``encryption_key``.

    Over a session in a holdfast store everything works as it does without encryption, searching by a scan.
    A record that was moved, replayed, altered or replaced by plaintext is left out and named by :meth:`check`;
    when the history itself was reordered, cut, extended or exchanged, everything but :meth:`check` and
    :meth:`reseal` raises :class:`HistoryTampered`. See :mod:`holdfast.history.sealing` for what is protected.
    Over any other session the items are wrapped one by one, with weaker promises:
    see :class:`~holdfast.history.envelopes.EnvelopeSession`.

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
        checked_name("session id", session_id)
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
        self.codec = SealingCodec(encryption_key, ttl=ttl, cipher=cipher, clock=clock)
        plain = stored_in(underlying_session)
        if plain is None:
            super().__init__(session_id, EnvelopeSession(underlying_session, self.codec))
            return
        if plain.codec.bound:
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
        stored = self.required("purge_expired")
        while True:
            page = await stored.page()
            if page is None:
                return 0
            readable, _ = stored.decoded(page.rows)
            kept = stored.unexpired(readable)
            views = [readable, *[await self.shown_once(stored, entry) for entry in await stored.generations()]]
            expired = {place(entry) for view in views for entry in view}
            expired -= {place(entry) for view in views for entry in stored.unexpired(view)}
            if not expired:
                return 0
            if await self.rewrite(stored, page, kept):
                return len(expired)

    async def shown_once(self, stored: StoredSession, generation: Generation) -> list[Decoded]:
        """What an earlier generation holds, expired or not; nothing when it is gone by now."""
        try:
            page = await stored.page(generation=generation.number)
        except NotFound:
            return []
        return stored.decoded(page.rows if page else [])[0]

    async def rekey(self) -> None:
        """Write everything anew with the first key, so that the other keys are no longer needed.

        One commit. The earlier generations and the keys of batches go, since they cannot be carried over.
        Forks have seals of their own and are to be rekeyed themselves. Unreadable records are kept as they are.
        """
        stored = self.required("rekey")
        while True:
            page = await stored.page()
            if page is None or await self.rewrite(stored, page, stored.decoded(page.rows)[0]):
                return

    async def rewrite(self, stored: StoredSession, page: Page, kept: list[Decoded]) -> bool:
        """Replace all that is stored by these items and the unreadable records; false if somebody was faster."""
        emptied = stored.erased(page.record)
        entries: list[Decoded | Row] = [*kept, *(row for row, _ in stored.decoded(page.rows)[1] if row.data)]
        entries.sort(key=lambda entry: (entry if isinstance(entry, Row) else entry.row).position)
        tape, start = emptied.tape, emptied.next_seq
        add = tuple(self.moved(entry, tape=tape, seq=seq) for seq, entry in enumerate(entries, start=start))
        ops: list[Op] = [stored.erasing(page.record)]
        if add:
            ops.append(stored.sealed(emptied, Splice(session_id=self.session_id, add=add, tape=tape)))
        try:
            await stored.backend.commit(*ops)
        except HistoryMoved:
            return False
        return True

    def moved(self, entry: Decoded | Row, *, tape: int, seq: int) -> bytes:
        """A record for another place, as old as it was."""
        if isinstance(entry, Row):
            return entry.data or b""
        written_at = entry.written_at or 0
        return self.codec.encrypted(encode_item(entry.item), tape=tape, seq=seq, written_at=written_at)

    async def reseal(self, *, lost_keys: bool = False) -> Report:
        """Accept the history as it is stored now, and say what was wrong with it.

        For someone who has the key and has decided to go on after :class:`HistoryTampered`. Records that do not
        authenticate are taken out of the view; an earlier generation still shows where they stood. Read the
        result: items of another history under the same key, and an order that somebody else chose, cannot be
        told from the genuine ones once the seal is broken. Nothing is destroyed, and nothing happens to a
        history that is in order.

        Records that need a key which was not given are :class:`WrongKey`, unless ``lost_keys`` says that they
        are to be given up as well.
        """
        stored = self.required("reseal")
        while True:
            page = await stored.backend.read(self.session_id)
            earlier = await stored.backend.generations(self.session_id)
            aside = await stored.backend.quarantined(self.session_id)
            problem = self.problem_with(page, earlier)
            report = findings(self.session_id, page, self.codec, aside=aside, tampered=problem)
            if page is None or not (problem or report.corrupt):
                return report
            if not lost_keys:
                self.codec.check_keys(page.rows)
            try:
                await stored.backend.commit(self.accepting(page, stored.decoded(page.rows)[0], earlier))
            except HistoryMoved:
                continue
            return report

    def problem_with(self, page: Page | None, earlier: list[Generation]) -> str | None:
        try:
            if page is not None:
                self.codec.verify(page.record)
                self.codec.verify_past(page.record, earlier)
        except (HistoryTampered, WrongKey) as problem:
            return str(problem)
        return None

    def accepting(self, page: Page, readable: list[Decoded], earlier: list[Generation]) -> Splice:
        """The present view without what cannot be read, sealed without regard to the seal it has."""
        record = page.record
        shown = join(Span(entry.row.tape, entry.row.seq, entry.row.seq + 1) for entry in readable)
        after = msgspec.structs.replace(
            record, version=record.version + 1, closed=shown, open_from=record.next_seq, length=len(readable)
        )
        before = Generation(record.generation, record.length, record.view, record.next_seq, 0)
        keys = {key_id for entry in readable if (key_id := key_id_of(entry.row))}
        return Splice(
            session_id=self.session_id,
            shape=Shape(closed=shown, open_from=record.next_seq, length=len(readable), archive=True),
            expected=record.version,
            tape=record.tape,
            seal=self.codec.signed(after, keys=keys, past=past_with([*earlier, before])),
        )


def place(entry: Decoded) -> tuple[int, int]:
    return entry.row.tape, entry.row.seq
