"""Histories that only the holder of a key can read or change unnoticed.

Every record is encrypted for its place on its tape, and places are never used twice, so a record that was moved,
replayed or altered no longer opens. The list of places that a session shows is signed together with its id and
version, so nothing can be reordered, cut off, put in or exchanged with another session. What a store alone cannot
tell is that all of it was set back to an earlier, once valid state: for that, keep the version of
:meth:`~standfast.history.stored_session.StoredSession.head` somewhere else.

Not encrypted: session ids, owners, annotations, times of change, and how many and how large the items are.
"""

import hashlib
import hmac
import os
import struct
from collections.abc import Iterable, Sequence

import msgspec

from standfast.base.clock import Clock, system_clock
from standfast.base.errors import HistoryTampered, WrongKey
from standfast.base.items import decode_item
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
from standfast.store.contract import Generation, Row, SessionRecord
from standfast.store.tape import TapeSpans, join_spans

FORMAT_VERSION = 1
# JSON cannot begin with a zero byte, so neither kind of record is ever taken for the other.
_MAGIC = b"\x00hfs"
_HEADER = struct.Struct(f">{len(_MAGIC)}sBB{KEY_ID_SIZE}s")  # magic, format, cipher, key id
_LOCATION = struct.Struct(">qq")  # tape, seq
_TIME = struct.Struct(">d")
_MIN_RECORD_SIZE = _HEADER.size + NONCE_SIZE + _TIME.size + TAG_SIZE


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """What is stored beside a view to prove it."""

    format: int
    signer: bytes
    keys: tuple[bytes, ...]
    """All keys with which the history was written. Without one of them part of it would silently be missing."""
    past: bytes
    """A digest of the earlier generations."""
    mac: bytes


_NO_GENERATIONS = b""
_encoder = msgspec.msgpack.Encoder()
_seal_decoder = msgspec.msgpack.Decoder(Seal)


class EncryptingCodec:
    """Encrypts the records of a history and signs its view.

    The first key encrypts and signs, all of them decrypt: to rotate, put the new key in front.
    """

    position_bound = True

    def __init__(
        self,
        encryption_key: str | Sequence[str],
        *,
        ttl: float | None = None,
        cipher: str = "aes-gcm",
        clock: Clock = system_clock,
    ) -> None:
        self.keyring = Keyring(encryption_key)
        self.ttl = validate_ttl(ttl)
        self.cipher_id = validate_cipher(cipher)
        self.clock = clock

    # --- records --------------------------------------------------------------------------------

    def encode(self, items: Sequence[bytes], *, tape: int, seq: int) -> tuple[bytes, ...]:
        now = self.clock()
        return tuple(
            self.encrypt_record(data, tape=tape, seq=seq + index, written_at=now) for index, data in enumerate(items)
        )

    def encrypt_record(self, data: bytes, *, tape: int, seq: int, written_at: float) -> bytes:
        key, nonce = self.keyring.primary, os.urandom(NONCE_SIZE)
        header = _HEADER.pack(_MAGIC, FORMAT_VERSION, self.cipher_id, key.id)
        box = key.get_cipher(self.cipher_id, make_tape_purpose(tape))
        return header + nonce + box.encrypt(nonce, _TIME.pack(written_at) + data, header + _LOCATION.pack(tape, seq))

    def decode(self, row: Row) -> DecodedRecord:
        if row.data is None:
            raise UnreadableRecord("the record is gone")
        if not row.data.startswith(_MAGIC):
            raise UnreadableRecord("plaintext or foreign bytes stand where a sealed record should be")
        if len(row.data) < _MIN_RECORD_SIZE:
            raise UnreadableRecord("the sealed record was cut short")
        header, rest = row.data[: _HEADER.size], row.data[_HEADER.size :]
        _, written_format, cipher, key_id = _HEADER.unpack(header)
        if written_format != FORMAT_VERSION or cipher not in CIPHER_IDS.values():
            raise UnreadableRecord(
                f"the record is sealed in a way this standfast does not know ({written_format}.{cipher})"
            )
        key = self.keyring.find(key_id)
        if key is None:
            raise UnreadableRecord(f"the record is sealed with the key {key_id.hex()}, which was not given")
        try:
            opened = key.decrypt(
                cipher,
                make_tape_purpose(row.tape),
                nonce=rest[:NONCE_SIZE],
                data=rest[NONCE_SIZE:],
                associated_data=header + _LOCATION.pack(row.tape, row.seq),
            )
            item = decode_item(opened[_TIME.size :])
        except DecryptionFailed:
            raise UnreadableRecord("authentication failed: the record was moved, replayed or altered") from None
        except ValueError as error:
            raise UnreadableRecord(str(error)) from None
        return DecodedRecord(row, item, _TIME.unpack_from(opened)[0])

    def digest(self, items: Sequence[bytes]) -> str:
        """Equal for equal batches, which is all it tells to those without the key."""
        # The oldest key, so that a batch begun before a rotation is still recognised after it.
        return self.keyring.oldest.compute_mac(b"batch", _encoder.encode(list(items)))[:16].hex()

    # --- views ----------------------------------------------------------------------------------

    def seal(self, record: SessionRecord, *, replaced: SessionRecord | None = None) -> bytes:
        before = parse_seal(record)
        past = before.past if before and record.version > 1 else _NO_GENERATIONS
        if replaced is not None:
            shown = Generation(replaced.generation, replaced.length, replaced.view, record.next_seq, 0)
            past = digest_generations([shown], past)
        return self.build_seal(record, keys=before.keys if before else (), past=past)

    def build_seal(self, record: SessionRecord, *, keys: Iterable[bytes], past: bytes) -> bytes:
        signer = self.keyring.primary
        needed = tuple(sorted({*keys, signer.id}))
        mac = compute_view_mac(signer, record, needed, past)
        return _encoder.encode(Seal(FORMAT_VERSION, signer.id, needed, past, mac))

    def verify(self, record: SessionRecord) -> None:
        if record.seal is None:
            if is_unwritten(record):
                return
            raise make_tampered_error(
                record, "it has no seal: it was written without encryption, or the seal was removed"
            )
        seal = parse_seal(record)
        if seal is None:
            raise make_tampered_error(record, "its seal is damaged")
        signer = self.keyring.find(seal.signer)
        if signer is None:
            raise self.make_wrong_key_error(f"session {record.session_id!r}", seal.signer)
        if not hmac.compare_digest(seal.mac, compute_view_mac(signer, record, seal.keys, seal.past)):
            raise make_tampered_error(record, "it does not show what it showed when it was sealed")
        for key_id in seal.keys:
            if self.keyring.find(key_id) is None:
                raise self.make_wrong_key_error(f"session {record.session_id!r}", key_id)

    def verify_generations(self, record: SessionRecord, generations: Sequence[Generation]) -> None:
        seal = parse_seal(record)
        if digest_generations(generations) != (seal.past if seal else _NO_GENERATIONS):
            raise make_tampered_error(record, "its earlier generations are not those that were sealed")

    def check_keys(self, rows: Iterable[Row]) -> None:
        """Raise :class:`WrongKey` when a record names a key that was not given."""
        for row in rows:
            key_id = get_key_id(row)
            if key_id is not None and self.keyring.find(key_id) is None:
                raise self.make_wrong_key_error(f"the item at position {row.position}", key_id)

    def make_wrong_key_error(self, what: str, needed: bytes) -> WrongKey:
        return WrongKey(
            f"{what} needs the encryption key with the id {needed.hex()}; given: {self.keyring}."
            " Pass that key as well: the first one encrypts, the others only decrypt"
        )


def digest_generations(generations: Iterable[Generation], previous: bytes = _NO_GENERATIONS) -> bytes:
    """The digest of generations that follow those in ``past``."""
    for entry in generations:
        fact = (previous, entry.number, entry.length, join_spans(entry.spans), entry.resumes_at)
        previous = hashlib.sha256(_encoder.encode(fact)).digest()
    return previous


def parse_seal(record: SessionRecord) -> Seal | None:
    if record.seal is None:
        return None
    try:
        seal = _seal_decoder.decode(record.seal)
    except (msgspec.MsgspecError, ValueError):
        return None
    return seal if seal.format == FORMAT_VERSION else None


def compute_view_mac(signer: EncryptionKey, record: SessionRecord, keys: Sequence[bytes], past: bytes) -> bytes:
    closed: TapeSpans = join_spans(record.closed)
    place = (record.session_id, record.version, record.length)
    tape = (record.tape, record.next_seq, record.open_from, closed)
    return signer.compute_mac(b"view", _encoder.encode((FORMAT_VERSION, signer.id, place, tape, tuple(keys), past)))


def get_key_id(row: Row) -> bytes | None:
    """The id of the key that a record says it is sealed with."""
    if row.data is None or len(row.data) < _MIN_RECORD_SIZE or not row.data.startswith(_MAGIC):
        return None
    key_id: bytes = _HEADER.unpack_from(row.data)[3]
    return key_id


def is_unwritten(record: SessionRecord) -> bool:
    return record.version == 0 and not (record.length or record.next_seq or record.closed)


def make_tape_purpose(tape: int) -> bytes:
    # By tape and not by session: a fork reads what its ancestors wrote.
    return b"tape %d" % tape


def make_tampered_error(record: SessionRecord, what: str) -> HistoryTampered:
    return HistoryTampered(
        f"session {record.session_id!r} was changed by someone without its key: {what}."
        " Restore a backup; or look at check() and accept what is there with reseal()"
    )
