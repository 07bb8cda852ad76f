"""Authenticated encryption of what is stored about a run, with the keys of encrypted sessions.

Headers, journal entries, snapshots and approvals are encrypted with a key that is derived for their run, and bound to
their place: a header to its revision and status, an entry to its number and kind, an approval to its id, revision,
status and expiry. Each entry names the one before it, and the seal of the run is a MAC over the number of entries, the
last of them and the header. So records that were altered, moved, exchanged, put back or removed are detected. Resetting
a run to an earlier valid state, its row together with its journal, is not.

Not encrypted: ids of runs, sessions, approvals and runtimes, statuses, kinds of entries, times, numbers and sizes.
"""

import hmac
import os
import struct
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from standfast.base.errors import StandfastError, WrongKey
from standfast.history.encryption.keys import (
    CIPHER_IDS,
    KEY_ID_SIZE,
    NONCE_SIZE,
    TAG_SIZE,
    DecryptionFailed,
    EncryptionKey,
    Keyring,
)
from standfast.runtime.errors import RunTampered
from standfast.store.operations import SaveApproval, SaveRun, make_encrypted_run_error
from standfast.store.records import ApprovalRecord, LogEntry, RunRecord

FORMAT_VERSION = 1
MAGIC = b"\x00sfr"  # neither JSON nor zlib, in which the same records are stored without encryption
_PREFIX = struct.Struct(f">{len(MAGIC)}sBB{KEY_ID_SIZE}s")  # magic, format, cipher, key id
_NONCE_START = _PREFIX.size + TAG_SIZE
_DATA_START = _NONCE_START + NONCE_SIZE
_CIPHER_ID = CIPHER_IDS["aes-gcm"]
NO_LINK = bytes(TAG_SIZE)
_encoder = msgspec.msgpack.Encoder()

Place: TypeAlias = tuple[str | int | float | None, ...]
"""What a record is, and where it belongs."""


class RunSeal(msgspec.Struct, frozen=True, array_like=True):
    """The seal of a run: a MAC over its header and journal. Stored with the run."""

    format: int
    signer: bytes
    """The id of the key that the MAC was made with."""
    keys: tuple[bytes, ...]
    """The ids of all keys that wrote the run. If one is missing, part of the run cannot be decrypted."""
    length: int
    tip: bytes
    """The tag of the last journal entry, which determines all entries before it."""
    header: bytes
    """The tag of the header."""
    mac: bytes = b""


_seal_decoder = msgspec.msgpack.Decoder(RunSeal)


class LockedBytes(bytes):
    """Stored bytes that could not be decrypted; ``problem`` is the error to raise when their content is needed."""

    problem: StandfastError


def lock(data: bytes, problem: StandfastError) -> LockedBytes:
    locked = LockedBytes(data)
    locked.problem = problem
    return locked


def is_locked(record: RunRecord | ApprovalRecord) -> bool:
    """Return whether the record cannot be read by this runtime. Its ids, status and times are known all the same."""
    return isinstance(record.data, LockedBytes) or record.data.startswith(MAGIC)


def require_unlocked(record: RunRecord | ApprovalRecord) -> None:
    """Raise an error if the record cannot be read by this runtime."""
    if isinstance(record.data, LockedBytes):
        raise record.data.problem
    if record.data.startswith(MAGIC):
        raise make_encrypted_run_error(record.run_id)


class RunCipher:
    """Encrypts and decrypts the records of runs. The first key encrypts and seals, all of them decrypt."""

    def __init__(self, keyring: Keyring) -> None:
        self.keyring = keyring

    def make_run_ids(self, key: str) -> list[str]:
        """Return the ids that a run with this idempotency key may have, first the one to create it with.

        That is made with the oldest key, so that a request which is repeated after a key rotation finds its run.
        """
        macs = [one.compute_mac(b"run id", key.encode()) for one in reversed(self.keyring.keys)]
        return [f"run_{mac.hex()[:32]}" for mac in macs]

    def make_queue_names(self, agent: str) -> list[str]:
        """Return the names of the agent's queue with each key, first that of the key which encrypts."""
        return [one.compute_mac(b"queue", agent.encode()).hex()[:32] for one in self.keyring.keys]

    # --- records --------------------------------------------------------------------------------

    def encrypt(self, data: bytes, run_id: str, place: Place, *, link: bytes = NO_LINK) -> bytes:
        """Return the record for its place. ``link`` is the tag of the record before it."""
        if isinstance(data, LockedBytes):
            raise data.problem
        key, nonce = self.keyring.primary, os.urandom(NONCE_SIZE)
        prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, _CIPHER_ID, key.id) + link
        cipher = key.get_cipher(_CIPHER_ID, make_purpose(run_id))
        return prefix + nonce + cipher.encrypt(nonce, data, prefix + _encoder.encode((run_id, *place)))

    def decrypt(self, data: bytes, run_id: str, place: Place) -> bytes:
        """Return the plaintext of a record, or raise :class:`WrongKey` or :class:`RunTampered`."""
        what = place[0]
        if not data.startswith(MAGIC):
            raise RunTampered(run_id, f"the {what} was written without encryption")
        if len(data) < _DATA_START + TAG_SIZE:
            raise RunTampered(run_id, f"the {what} is truncated")
        _, written_format, cipher_id, key_id = _PREFIX.unpack_from(data)
        if written_format != FORMAT_VERSION or cipher_id not in CIPHER_IDS.values():
            raise RunTampered(run_id, f"the {what} has an unknown format, or a newer version of standfast wrote it")
        try:
            return self.find_key(run_id, key_id).decrypt(
                cipher_id,
                make_purpose(run_id),
                nonce=data[_NONCE_START:_DATA_START],
                data=data[_DATA_START:],
                associated_data=data[:_NONCE_START] + _encoder.encode((run_id, *place)),
            )
        except DecryptionFailed:
            raise RunTampered(run_id, f"the {what} was altered, moved or replayed") from None

    def find_key(self, run_id: str, key_id: bytes) -> EncryptionKey:
        key = self.keyring.find(key_id)
        if key is None:
            raise WrongKey(
                f"run {run_id!r} needs the encryption key with the id {key_id.hex()}; the keys given have the ids"
                f" {self.keyring}. Pass the missing key too, after the key to encrypt with"
            )
        return key

    # --- seals ----------------------------------------------------------------------------------

    def build_seal(self, run_id: str, *, keys: Iterable[bytes], length: int, tip: bytes, header: bytes) -> bytes:
        signer = self.keyring.primary
        seal = RunSeal(FORMAT_VERSION, signer.id, tuple(sorted({*keys, signer.id})), length, tip, header)
        return _encoder.encode(msgspec.structs.replace(seal, mac=compute_mac(signer, run_id, seal)))

    def verify(self, record: RunRecord) -> RunSeal:
        """Return the seal of the run, or raise an error if it does not match the header and the number of entries."""
        run_id = record.run_id
        if record.seal is None:
            raise RunTampered(run_id, "it was written without encryption, or its seal was removed")
        try:
            seal = _seal_decoder.decode(record.seal)
        except (msgspec.MsgspecError, ValueError):
            raise RunTampered(run_id, "its seal is damaged") from None
        if not hmac.compare_digest(seal.mac, compute_mac(self.find_key(run_id, seal.signer), run_id, seal)):
            raise RunTampered(run_id, "its seal does not match")
        for key_id in seal.keys:
            self.find_key(run_id, key_id)
        if seal.length != record.journal_length:
            raise RunTampered(run_id, f"its journal has {record.journal_length} entries, {seal.length} were sealed")
        if seal.header != get_tag(record.data):
            raise RunTampered(run_id, "its header was replaced")
        return seal

    # --- what a backend returns -----------------------------------------------------------------

    def open_run(self, record: RunRecord) -> RunRecord:
        """Return the run with its decrypted header; locked if it cannot be decrypted or was changed."""
        try:
            self.verify(record)
            data = self.decrypt(record.data, record.run_id, locate_header(record, record.revision))
        except (WrongKey, RunTampered) as problem:
            data = lock(record.data, problem)
        return msgspec.structs.replace(record, data=data)

    def open_approval(self, record: ApprovalRecord) -> ApprovalRecord:
        """Return the decrypted approval; locked if it cannot be decrypted or was changed."""
        try:
            data = self.decrypt(record.data, record.run_id, locate_approval(record, record.revision))
        except (WrongKey, RunTampered) as problem:
            data = lock(record.data, problem)
        return msgspec.structs.replace(record, data=data)

    def open_journal(self, record: RunRecord, rows: Sequence[LogEntry], *, after: int) -> list[LogEntry]:
        """Return the decrypted entries after number ``after``; ``record`` was read before them.

        Raise :class:`RunTampered` unless they continue each other and include those that the seal of the run counts.
        """
        seal, run_id, entries = self.verify(record), record.run_id, list[LogEntry]()
        link: bytes | None = NO_LINK if after == 0 else None
        for seq, row in enumerate(rows, start=after + 1):
            if row.seq != seq:
                raise RunTampered(run_id, f"the journal entry {seq} is missing")
            data = self.decrypt(row.data, run_id, locate_entry(row.seq, row.kind))
            if link not in (None, get_link(row.data)):
                raise RunTampered(run_id, f"the journal entry {seq} does not follow the one before it")
            link = get_tag(row.data)
            if seq == seal.length and link != seal.tip:
                raise RunTampered(run_id, f"the journal entry {seq} was replaced")
            entries.append(msgspec.structs.replace(row, data=data))
        if after + len(rows) < seal.length:
            raise RunTampered(run_id, f"the last entries of its journal are missing, from {after + len(rows) + 1} on")
        return entries

    def open_snapshot(self, run_id: str, row: LogEntry) -> LogEntry:
        """Return the decrypted snapshot; an empty one, which is ignored, if it cannot be decrypted."""
        try:
            return msgspec.structs.replace(row, data=self.decrypt(row.data, run_id, locate_snapshot(row.kind)))
        except (WrongKey, RunTampered):
            return msgspec.structs.replace(row, data=b"")


def locate_header(run: RunRecord | SaveRun, revision: int) -> Place:
    return "header", run.session_id, run.status, revision


def locate_entry(seq: int, kind: str) -> Place:
    return "journal entry", seq, kind


def locate_snapshot(kind: str) -> Place:
    return "snapshot", kind


def locate_approval(approval: ApprovalRecord | SaveApproval, revision: int) -> Place:
    return "approval", approval.approval_id, approval.session_id, approval.status, revision, approval.expires_at


def make_purpose(run_id: str) -> bytes:
    return b"run " + run_id.encode()


def get_tag(data: bytes) -> bytes:
    """Return the authentication tag of a record, which identifies it."""
    return data[-TAG_SIZE:]


def get_key_id(data: bytes) -> bytes:
    """Return the id of the key that a record was encrypted with."""
    key_id: bytes = _PREFIX.unpack_from(data.ljust(_PREFIX.size, b"\0"))[3]
    return key_id


def get_link(data: bytes) -> bytes:
    """Return the tag of the record before this one."""
    return data[_PREFIX.size : _NONCE_START]


def compute_mac(signer: EncryptionKey, run_id: str, seal: RunSeal) -> bytes:
    sealed = (run_id, seal.format, signer.id, tuple(seal.keys), seal.length, seal.tip, seal.header)
    return signer.compute_mac(b"run", _encoder.encode(sealed))
