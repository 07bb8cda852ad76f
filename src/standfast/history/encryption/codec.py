"""Authenticated encryption of the records of a history, and the seal over its view.

Every record is encrypted for its location on a tape, and locations are never reused, so a record that was moved,
replayed or altered fails to decrypt. The seal is a MAC over the locations that a session shows, its id and its version,
so reordering, truncating, inserting and exchanging items with another session are detected. Resetting the whole
database to an earlier valid state is not detected: keep the version of
:meth:`~standfast.history.stored_session.StoredSession.head` in another place to notice that.

Not encrypted: session ids, owners, annotations, timestamps, and the number and sizes of the items.
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
from standfast.store.records import Generation, Row, SessionRecord
from standfast.store.tape import TapeSpans, join_spans

FORMAT_VERSION = 1
# JSON cannot begin with a zero byte, so plain and encrypted records cannot be confused.
_MAGIC = b"\x00hfs"
_HEADER = struct.Struct(f">{len(_MAGIC)}sBB{KEY_ID_SIZE}s")  # magic, format, cipher, key id
_LOCATION = struct.Struct(">qq")  # tape, seq
_TIME = struct.Struct(">d")
_MIN_RECORD_SIZE = _HEADER.size + NONCE_SIZE + _TIME.size + TAG_SIZE


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """The seal of a session: a MAC over its view. Stored with the session."""

    format: int
    signer: bytes
    keys: tuple[bytes, ...]
    """The ids of all keys that wrote the history. If one is missing, part of the history cannot be decrypted."""
    past: bytes
    """A digest of the earlier generations."""
    mac: bytes


_NO_GENERATIONS = b""
_encoder = msgspec.msgpack.Encoder()
_seal_decoder = msgspec.msgpack.Decoder(Seal)


class EncryptingCodec:
    """Encrypts the records of a history and seals its view.

    The first key encrypts and seals, all of them decrypt. To rotate keys, put the new one first.
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
        cipher = key.get_cipher(self.cipher_id, make_tape_purpose(tape))
        return header + nonce + cipher.encrypt(nonce, _TIME.pack(written_at) + data, header + _LOCATION.pack(tape, seq))

    def decode(self, row: Row) -> DecodedRecord:
        if row.data is None:
            raise UnreadableRecord("the record is missing")
        if not row.data.startswith(_MAGIC):
            raise UnreadableRecord("expected an encrypted record, found plaintext or other bytes")
        if len(row.data) < _MIN_RECORD_SIZE:
            raise UnreadableRecord("the encrypted record is truncated")
        header, rest = row.data[: _HEADER.size], row.data[_HEADER.size :]
        _, written_format, cipher_id, key_id = _HEADER.unpack(header)
        if written_format != FORMAT_VERSION or cipher_id not in CIPHER_IDS.values():
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

    def seal(self, record: SessionRecord, *, replaced: SessionRecord | None = None) -> bytes:
        before = parse_seal(record)
        past = before.past if before and record.version > 1 else _NO_GENERATIONS
        if replaced is not None:
            archived = Generation(replaced.generation, replaced.length, replaced.view, record.next_seq, 0)
            past = digest_generations([archived], past)
        return self.build_seal(record, keys=before.keys if before else (), past=past)

    def build_seal(self, record: SessionRecord, *, keys: Iterable[bytes], past: bytes) -> bytes:
        """Return a seal by the primary key, for a history that also needs ``keys``."""
        signer = self.keyring.primary
        key_ids = tuple(sorted({*keys, signer.id}))
        mac = compute_view_mac(signer, record, key_ids, past)
        return _encoder.encode(Seal(FORMAT_VERSION, signer.id, key_ids, past, mac))

    def verify(self, record: SessionRecord) -> None:
        if record.seal is None:
            if is_unwritten(record):
                return
            raise make_tampered_error(
                record, "it has no seal: it was written without encryption, or the seal was removed"
            )
        seal = parse_seal(record)
        if seal is None:
            raise make_tampered_error(record, "the seal is damaged")
        signer = self.keyring.find(seal.signer)
        if signer is None:
            raise self.make_wrong_key_error(f"session {record.session_id!r}", seal.signer)
        if not hmac.compare_digest(seal.mac, compute_view_mac(signer, record, seal.keys, seal.past)):
            raise make_tampered_error(record, "the items it shows do not match the seal")
        for key_id in seal.keys:
            if self.keyring.find(key_id) is None:
                raise self.make_wrong_key_error(f"session {record.session_id!r}", key_id)

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
            f"{what} needs the encryption key with the id {key_id.hex()}, but got the keys {self.keyring}."
            " Pass that key as well: the first one encrypts, the others only decrypt"
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
    return seal if seal.format == FORMAT_VERSION else None


def compute_view_mac(signer: EncryptionKey, record: SessionRecord, keys: Sequence[bytes], past: bytes) -> bytes:
    closed: TapeSpans = join_spans(record.closed)
    identity = (record.session_id, record.version, record.length)
    view = (record.tape, record.next_seq, record.open_from, closed)
    return signer.compute_mac(b"view", _encoder.encode((FORMAT_VERSION, signer.id, identity, view, tuple(keys), past)))


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
