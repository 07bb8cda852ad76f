"""Authenticated encryption of the records of a history, and the seal over its view.

Every record is encrypted for its location on a tape, and locations are never reused, so a record that was moved,
replayed or altered fails to decrypt. The seal is a MAC over the locations in the view of a session, its id and its
version, so reordering, truncating, inserting and exchanging items with another session are detected. It also covers
the tag of the last record of each span, and each record contains the tag of the one before it, so that records of two
timelines cannot be mixed. Resetting a session to an earlier valid state, its row together with its records, is not
detected: keep the version of :meth:`~standfast.history.stored_session.StoredSession.head` in another place to notice
that.

Not encrypted: session ids, owners, metadata, timestamps, and the number and sizes of the items.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from standfast.base.errors import HistoryTampered, WrongKey
from standfast.base.items import decode_item
from standfast.base.time import Clock, system_clock
from standfast.history.codec import DecodedRecord, UnreadableRecord
from standfast.history.encryption.keys import (
    CIPHER_IDS,
    KEY_ID_SIZE,
    NONCE_SIZE,
    TAG_SIZE,
    DecryptionFailed,
    EncryptionKey,
    Keyring,
    validate_cipher,
    validate_ttl,
)
from standfast.store.records import Generation, HistoryPage, Row, SessionRecord
from standfast.store.tape import TapeSpans, join_spans

FORMAT_VERSION = 2
"""Of records and seals. Version 1 had no links between records; both are read."""
_FORMATS = (1, FORMAT_VERSION)
# JSON cannot begin with a zero byte, so plain and encrypted records cannot be confused. The letters are from holdfast,
# the name of the product before version 0.1.0 was released; they are in stored data and stay.
_MAGIC = b"\x00hfs"
_HEADER = struct.Struct(f">{len(_MAGIC)}sBB{KEY_ID_SIZE}s")  # magic, format, cipher, key id
_LOCATION = struct.Struct(">qq")  # tape, seq
_TIME = struct.Struct(">d")
_MIN_RECORD_SIZE = _HEADER.size + NONCE_SIZE + _TIME.size + TAG_SIZE
NO_LINK = bytes(TAG_SIZE)

Location: TypeAlias = tuple[int, int]
"""A tape and a place on it."""


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """The seal of a session: a MAC over its view. Stored with the session."""

    format: int
    signer: bytes
    """The id of the key that the MAC was made with."""
    keys: tuple[bytes, ...]
    """The ids of all keys that wrote the history. If one is missing, part of the history cannot be decrypted."""
    past: bytes
    """A digest of the earlier generations."""
    mac: bytes
    tips: tuple[tuple[int, int, bytes], ...] = ()
    """Tape, place and tag of the last record in each span of the view, and of the last record on the session's tape.

    Each record contains the tag of its predecessor on the tape, so the tip of a span determines all of its records.
    """


_NO_GENERATIONS = b""
_encoder = msgspec.msgpack.Encoder()
_seal_decoder = msgspec.msgpack.Decoder(Seal)


class EncryptingCodec:
    """Encrypts the records of a history and seals its view.

    The first key encrypts and seals, all of them decrypt. To rotate keys, put the new one first.
    """

    location_bound = True

    def __init__(
        self,
        encryption_key: str | Sequence[str],
        *,
        ttl: float | None = None,
        cipher: str = "aes-gcm",
        clock: Clock = system_clock,
        strict: bool = True,
        allow_short: bool = False,
    ) -> None:
        self.keyring = Keyring(encryption_key, allow_short=allow_short)
        self.ttl = validate_ttl(ttl)
        self.cipher_id = validate_cipher(cipher)
        self.clock = clock
        self.strict = strict

    # --- records --------------------------------------------------------------------------------

    def encode(
        self, items: Sequence[bytes], *, tape: int, seq: int, before: SessionRecord | None = None
    ) -> tuple[bytes, ...]:
        now, link, records = self.clock(), find_tips(before).get((tape, seq - 1), NO_LINK), list[bytes]()
        for place, data in enumerate(items, start=seq):
            records.append(self.encrypt_record(data, tape=tape, seq=place, written_at=now, link=link))
            link = get_tag(records[-1])
        return tuple(records)

    def encrypt_record(self, data: bytes, *, tape: int, seq: int, written_at: float, link: bytes = NO_LINK) -> bytes:
        """Return the encrypted record. ``link`` is the tag of the record before it on the tape, if that is known."""
        key, nonce = self.keyring.primary, os.urandom(NONCE_SIZE)
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, self.cipher_id, key.id) + link
        cipher = key.get_cipher(self.cipher_id, make_tape_purpose(tape))
        return header + nonce + cipher.encrypt(nonce, _TIME.pack(written_at) + data, header + _LOCATION.pack(tape, seq))

    def decode(self, row: Row) -> DecodedRecord:
        if row.data is None:
            raise UnreadableRecord("the record is missing")
        if not row.data.startswith(_MAGIC):
            raise UnreadableRecord("expected an encrypted record, found plaintext or other bytes")
        if len(row.data) < _MIN_RECORD_SIZE:
            raise UnreadableRecord("the encrypted record is truncated")
        _, written_format, cipher_id, key_id = _HEADER.unpack_from(row.data)
        header_size = _HEADER.size + (0 if written_format == 1 else TAG_SIZE)
        header, rest = row.data[:header_size], row.data[header_size:]
        if written_format not in _FORMATS or cipher_id not in CIPHER_IDS.values():
            raise UnreadableRecord(
                f"unknown format {written_format} or cipher {cipher_id}: written by a newer version of standfast"
            )
        key = self.keyring.find(key_id)
        if key is None:
            raise UnreadableRecord(f"the record needs the encryption key with the id {key_id.hex()}")
        try:
            plaintext = key.decrypt(
                cipher_id,
                make_tape_purpose(row.tape),
                nonce=rest[:NONCE_SIZE],
                data=rest[NONCE_SIZE:],
                associated_data=header + _LOCATION.pack(row.tape, row.seq),
            )
            item = decode_item(plaintext[_TIME.size :])
        except DecryptionFailed:
            raise UnreadableRecord("authentication failed: the record was moved, replayed or altered") from None
        except ValueError as error:
            raise UnreadableRecord(str(error)) from None
        return DecodedRecord(row, item, _TIME.unpack_from(plaintext)[0])

    def digest(self, items: Sequence[bytes]) -> str:
        # With the oldest key, so that a batch that was first sent before a key rotation is recognised after it.
        return self.keyring.oldest.compute_mac(b"batch", _encoder.encode(list(items)))[:16].hex()

    # --- views ----------------------------------------------------------------------------------

    def find_replaced(self, record: SessionRecord, entries: Sequence[DecodedRecord]) -> dict[int, str]:
        """Return the positions of records that are authentic for their place, but not the ones that were sealed."""
        tips, found = find_tips(record), dict[int, str]()
        following: Row | None = None
        for entry in reversed(entries):  # a record that was replaced says nothing about the one before it
            row, tag = entry.row, get_tag(entry.row.data or b"")
            links = [tips.get((row.tape, row.seq), NO_LINK)]
            if following is not None and (following.tape, following.seq) == (row.tape, row.seq + 1):
                links.append(get_link(following))
            following = row
            if any(link not in (NO_LINK, tag) for link in links):
                found[row.position] = "the record was replaced by another one that was written for the same place"
                following = None
        return found

    def seal(
        self,
        record: SessionRecord,
        *,
        replaced: SessionRecord | None = None,
        added: Sequence[bytes] = (),
        tags: Mapping[Location, bytes] | None = None,
    ) -> bytes:
        before = parse_seal(record)
        known = find_tips(record) | dict(tags or {})
        for seq, data in enumerate(added, start=record.next_seq - len(added)):
            known[record.tape, seq] = get_tag(data)
        past = before.past if before and record.version > 1 else _NO_GENERATIONS
        if replaced is not None:
            archived = Generation(replaced.generation, replaced.length, replaced.view, record.next_seq, 0)
            past = digest_generations([archived], past)
        return self.build_seal(record, keys=before.keys if before else (), past=past, tags=known)

    def build_seal(
        self, record: SessionRecord, *, keys: Iterable[bytes], past: bytes, tags: Mapping[Location, bytes]
    ) -> bytes:
        """Return a seal made with the primary key.

        ``keys`` are the ids of the other keys that items of the history were encrypted with, and ``tags`` those of
        stored records by their place.
        """
        signer = self.keyring.primary
        key_ids = tuple(sorted({*keys, signer.id}))
        tips = tuple((*place, tags[place]) for place in sorted(list_tip_locations(record)) if place in tags)
        seal = Seal(FORMAT_VERSION, signer.id, key_ids, past, b"", tips)
        return _encoder.encode(msgspec.structs.replace(seal, mac=compute_view_mac(signer, record, seal)))

    def verify(self, record: SessionRecord) -> None:
        if record.seal is None:
            if is_unwritten(record):
                return
            raise make_tampered_error(
                record, "it has no seal, so it was written without encryption or the seal was removed"
            )
        seal = parse_seal(record)
        if seal is None:
            raise make_tampered_error(record, "the seal is damaged")
        signer = self.keyring.find(seal.signer)
        if signer is None:
            raise self.make_wrong_key_error(f"session {record.session_id!r}", seal.signer)
        if not hmac.compare_digest(seal.mac, compute_view_mac(signer, record, seal)):
            raise make_tampered_error(record, "the stored view does not match the seal")
        for key_id in seal.keys:
            if self.keyring.find(key_id) is None:
                raise self.make_wrong_key_error(f"session {record.session_id!r}", key_id)

    def verify_page(self, page: HistoryPage) -> None:
        self.verify(page.record)
        if page.overrun:
            raise make_tampered_error(page.record, "it has later records: its row was replaced by an older copy")

    def make_unreadable_error(self, record: SessionRecord, row: Row, reason: str) -> HistoryTampered:
        return make_tampered_error(record, f"the item at position {row.position} cannot be read ({reason})")

    def verify_generations(self, record: SessionRecord, generations: Sequence[Generation]) -> None:
        seal = parse_seal(record)
        if digest_generations(generations) != (seal.past if seal else _NO_GENERATIONS):
            raise make_tampered_error(record, "the earlier generations do not match the seal")

    def check_keys(self, rows: Iterable[Row]) -> None:
        """Raise :class:`WrongKey` if a record needs a key that is not in the keyring."""
        for row in rows:
            key_id = get_key_id(row)
            if key_id is not None and self.keyring.find(key_id) is None:
                raise self.make_wrong_key_error(f"the item at position {row.position}", key_id)

    def make_wrong_key_error(self, what: str, key_id: bytes) -> WrongKey:
        return WrongKey(
            f"{what} needs the encryption key with the id {key_id.hex()}; the keys given have the ids {self.keyring}."
            " Pass the missing key too, after the key to encrypt with"
        )


def digest_generations(generations: Iterable[Generation], previous: bytes = _NO_GENERATIONS) -> bytes:
    """Return the digest of generations that follow those with the digest ``previous``."""
    for entry in generations:
        link = (previous, entry.number, entry.length, join_spans(entry.spans), entry.resumes_at)
        previous = hashlib.sha256(_encoder.encode(link)).digest()
    return previous


def parse_seal(record: SessionRecord) -> Seal | None:
    """Return the seal of a session; ``None`` if it has none or the seal cannot be decoded."""
    if record.seal is None:
        return None
    try:
        seal = _seal_decoder.decode(record.seal)
    except (msgspec.MsgspecError, ValueError):
        return None
    return seal if seal.format in _FORMATS else None


def compute_view_mac(signer: EncryptionKey, record: SessionRecord, seal: Seal) -> bytes:
    closed: TapeSpans = join_spans(record.closed)
    identity = (record.session_id, record.version, record.length)
    view = (record.tape, record.next_seq, record.open_from, closed)
    tips = () if seal.format == 1 else (seal.tips,)
    sealed = (seal.format, signer.id, identity, view, tuple(seal.keys), seal.past, *tips)
    return signer.compute_mac(b"view", _encoder.encode(sealed))


def list_tip_locations(record: SessionRecord) -> set[Location]:
    """Return the places whose tags the seal of this record contains."""
    ends = {(span.tape, span.stop - 1) for span in record.view if span.stop > span.start}
    return ends | ({(record.tape, record.next_seq - 1)} if record.next_seq else set())


def find_tips(record: SessionRecord | None) -> dict[Location, bytes]:
    """Return the tags in the seal of a session by their place."""
    seal = None if record is None else parse_seal(record)
    return {(tape, seq): tag for tape, seq, tag in seal.tips} if seal else {}


def get_tag(data: bytes) -> bytes:
    """Return the authentication tag of an encrypted record, which identifies it."""
    return data[-TAG_SIZE:]


def get_link(row: Row) -> bytes:
    """Return the tag of the predecessor that an authentic record names; zeros if it names none."""
    data = row.data or b""
    return NO_LINK if data[len(_MAGIC)] == 1 else data[_HEADER.size : _HEADER.size + TAG_SIZE]


def get_key_id(row: Row) -> bytes | None:
    """Return the key id in the header of a record; ``None`` if it is not an encrypted record."""
    if row.data is None or len(row.data) < _MIN_RECORD_SIZE or not row.data.startswith(_MAGIC):
        return None
    key_id: bytes = _HEADER.unpack_from(row.data)[3]
    return key_id


def is_unwritten(record: SessionRecord) -> bool:
    return record.version == 0 and not (record.length or record.next_seq or record.closed)


def make_tape_purpose(tape: int) -> bytes:
    # By tape and not by session, because a fork reads the records of its ancestors.
    return b"tape %d" % tape


def make_tampered_error(record: SessionRecord, what: str) -> HistoryTampered:
    return HistoryTampered(
        f"session {record.session_id!r} was changed without its encryption key: {what}."
        " Restore a backup, or inspect check() and accept the stored items with reseal()"
    )
