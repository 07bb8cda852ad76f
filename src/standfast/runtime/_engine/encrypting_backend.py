"""A backend that encrypts runs and workspaces before they are written and decrypts them when they are read.

Versions and manifests are bound to their workspace and their number. Chunks are named by a MAC of their digest, so that
names say nothing about the content, and bound to their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from standfast.base.errors import JournalMoved, WrongKey
from standfast.history.encryption.keys import EncryptionKey
from standfast.runtime._engine.run_cipher import (
    NO_LINK,
    Place,
    RunCipher,
    get_tag,
    locate_approval,
    locate_entry,
    locate_header,
    locate_snapshot,
)
from standfast.runtime.errors import RunTampered
from standfast.store.backend import Backend
from standfast.store.operations import (
    AppendEvents,
    AppendJournal,
    AppendVersions,
    Op,
    OpResult,
    PutBlob,
    RewriteVersions,
    SaveApproval,
    SaveCheckpoint,
    SaveRun,
)
from standfast.store.records import (
    ApprovalRecord,
    BlobRecord,
    ChangedApproval,
    CheckpointRecord,
    LogEntry,
    RunRecord,
    SessionTurn,
    VersionRecord,
)
from standfast.workers.errors import WorkspaceRefused

_BLOBS = "blobs"


class WorkspaceCipher:
    """Encrypts the operations on workspaces, and decrypts what a backend returns."""

    def __init__(self, cipher: RunCipher) -> None:
        self._cipher = cipher

    def encrypt_versions(self, op: AppendVersions) -> AppendVersions:
        numbered = enumerate(op.versions, start=op.expected + 1)
        return replace(
            op, versions=tuple(self._cipher.encrypt(data, op.key, ("version", number)) for number, data in numbered)
        )

    def encrypt_rewrite(self, op: RewriteVersions) -> RewriteVersions:
        numbered = enumerate(op.versions, start=1)
        return replace(
            op, versions=tuple(self._cipher.encrypt(data, op.key, ("version", number)) for number, data in numbered)
        )

    def encrypt_checkpoint(self, op: SaveCheckpoint) -> SaveCheckpoint:
        key = self._cipher.keyring.primary
        data = self._cipher.encrypt(op.data, op.key, ("checkpoint", op.version))
        return replace(op, data=data, blobs=tuple(make_name(key, digest) for digest in op.blobs))

    def encrypt_blob(self, op: PutBlob) -> PutBlob:
        name = make_name(self._cipher.keyring.primary, op.digest)
        return replace(op, digest=name, data=self._cipher.encrypt(op.data, _BLOBS, ("blob", name)))

    def open_version(self, key: str, record: VersionRecord) -> VersionRecord:
        return replace(record, data=self._cipher.decrypt(record.data, key, ("version", record.version)))

    def open_checkpoint(self, record: CheckpointRecord) -> CheckpointRecord:
        return replace(record, data=self._decrypt(record.data, record.key, ("checkpoint", record.version)))

    def open_blob(self, name: str, data: bytes) -> bytes:
        return self._decrypt(data, _BLOBS, ("blob", name))

    def _decrypt(self, data: bytes, key: str, place: Place) -> bytes:
        try:
            return self._cipher.decrypt(data, key, place)
        except (RunTampered, WrongKey) as problem:
            raise WorkspaceRefused("damaged", str(problem)) from problem

    def list_names(self, digest: str) -> list[str]:
        """Return the names that a chunk may have, by the key that it was written with."""
        return [make_name(key, digest) for key in self._cipher.keyring.keys]

    async def find_blobs(self, backend: Any, digests: Sequence[str]) -> list[BlobRecord]:
        names = {name: digest for digest in digests for name in self.list_names(digest)}
        found = {names[blob.digest]: blob for blob in reversed(await backend.find_blobs(list(names)))}
        return [found[digest] for digest in digests if digest in found]


def make_name(key: EncryptionKey, digest: str) -> str:
    return key.compute_mac(b"blob name", digest.encode()).hex()


def encrypt_backend(backend: Backend, cipher: RunCipher | None) -> Any:
    """Return the backend that encrypts runs with the cipher, or the same backend without one."""
    return backend if cipher is None else EncryptingBackend(backend, cipher)


class EncryptingBackend:
    """Encrypts runs, approvals and workspaces with a :class:`RunCipher`. Sessions are encrypted by their codec.

    What cannot be decrypted is returned locked, so that listings work, and is never written. Runs that were stored
    without encryption count as changed.
    """

    def __init__(self, backend: Backend, cipher: RunCipher) -> None:
        self._backend, self._cipher, self._workspaces = backend, cipher, WorkspaceCipher(cipher)
        self.indexes_words, self.location = backend.indexes_words, backend.location

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def commit(self, *ops: Op) -> list[OpResult]:
        """Encrypt and apply the operations. Entries are encrypted again when the journal has grown meanwhile."""
        while True:
            batch = CommitEncryption(self._backend, self._cipher)
            encrypted = [await batch.encrypt(op) for op in ops]
            batch.check_sealed()
            try:
                return await self._backend.commit(*encrypted)
            except JournalMoved:
                continue

    async def get_run(self, run_id: str) -> RunRecord | None:
        record = await self._backend.get_run(run_id)
        return None if record is None else self._cipher.open_run(record)

    async def list_runs(self, **filters: Any) -> list[RunRecord]:
        return [self._cipher.open_run(record) for record in await self._backend.list_runs(**filters)]

    async def get_session_turn(self, session_id: str, *, lease: str) -> SessionTurn:
        turn = await self._backend.get_session_turn(session_id, lease=lease)
        holder, queued = (run and self._cipher.open_run(run) for run in (turn.holder, turn.queued))
        return replace(turn, holder=holder, queued=queued)

    async def list_claimable(self, **filters: Any) -> list[RunRecord]:
        return [self._cipher.open_run(record) for record in await self._backend.list_claimable(**filters)]

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]:
        while True:
            # The record is read first, so that every entry it counts is in the journal by then.
            record = await self._backend.get_run(run_id)
            rows = await self._backend.read_journal(run_id, after=after)
            if record is None:
                return rows
            try:
                return self._cipher.open_journal(record, rows, after=after)
            except RunTampered:
                found = await self._backend.get_run(run_id)
                if found is None:  # deleted between the two reads
                    return []
                if found.seal == record.seal:
                    raise
                # Extended or encrypted again between the two reads.

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        rows = await self._backend.read_events(run_id, after=after, limit=limit)
        return [self._cipher.open_snapshot(run_id, row) for row in rows]

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None:
        record = await self._backend.get_approval(approval_id)
        return None if record is None else self._cipher.open_approval(record)

    async def list_approvals(self, **filters: Any) -> list[ApprovalRecord]:
        return self._open_approvals(await self._backend.list_approvals(**filters))

    async def list_due_approvals(self, **filters: Any) -> list[ApprovalRecord]:
        return self._open_approvals(await self._backend.list_due_approvals(**filters))

    async def list_changed_approvals(self, **filters: Any) -> list[ChangedApproval]:
        found = await self._backend.list_changed_approvals(**filters)
        return [replace(one, record=self._cipher.open_approval(one.record)) for one in found]

    async def read_versions(self, key: str, *, after: int = 0, upto: int | None = None) -> list[VersionRecord]:
        records = await self._backend.read_versions(key, after=after, upto=upto)
        return [self._workspaces.open_version(key, record) for record in records]

    async def get_checkpoint(self, key: str, version: int) -> CheckpointRecord | None:
        record = await self._backend.get_checkpoint(key, version)
        return None if record is None else self._workspaces.open_checkpoint(record)

    async def find_blobs(self, digests: Sequence[str]) -> list[BlobRecord]:
        """Return the records of the blobs, under the names by which they are stored."""
        return await self._workspaces.find_blobs(self._backend, digests)

    async def read_blob(self, blob: BlobRecord) -> bytes | None:
        data = await self._backend.read_blob(blob)
        return None if data is None else self._workspaces.open_blob(blob.digest, data)

    def _open_approvals(self, records: Sequence[ApprovalRecord]) -> list[ApprovalRecord]:
        return [self._cipher.open_approval(record) for record in records]


class CommitEncryption:
    """Encrypts the operations of one commit. The runs that it changes are read and verified first."""

    def __init__(self, backend: Backend, cipher: RunCipher) -> None:
        self._backend, self._cipher = backend, cipher
        self._seals: dict[str, NextSeal] = {}
        self._unsealed: set[str] = set()

    async def encrypt(self, op: Op) -> Op:
        match op:
            case SaveRun():
                return await self._encrypt_header(op)
            case AppendJournal():
                return await self._encrypt_entries(op)
            case AppendEvents():
                encrypt = self._cipher.encrypt
                events = [(kind, encrypt(data, op.run_id, locate_snapshot(kind))) for kind, data in op.events]
                return replace(op, events=tuple(events))
            case SaveApproval():
                place = locate_approval(op, op.expected + 1)
                return replace(op, data=self._cipher.encrypt(op.data, op.run_id, place))
            case AppendVersions():
                return WorkspaceCipher(self._cipher).encrypt_versions(op)
            case SaveCheckpoint():
                return WorkspaceCipher(self._cipher).encrypt_checkpoint(op)
            case PutBlob():
                return WorkspaceCipher(self._cipher).encrypt_blob(op)
        return op

    def check_sealed(self) -> None:
        assert not self._unsealed, "a header is written together with an entry, which carries the seal"  # noqa: S101

    async def _encrypt_header(self, op: SaveRun) -> SaveRun:
        if op.expected == 0:
            self._seals[op.run_id] = NextSeal()
        seal = await self._load_seal(op.run_id)
        data = self._cipher.encrypt(op.data, op.run_id, locate_header(op, op.expected + 1))
        seal.header = get_tag(data)
        self._unsealed.add(op.run_id)
        return replace(op, data=data)

    async def _encrypt_entries(self, op: AppendJournal) -> AppendJournal:
        seal, entries = await self._load_seal(op.run_id), []
        expected = seal.length
        for seq, (kind, data) in enumerate(op.entries, start=expected + 1):
            record = self._cipher.encrypt(data, op.run_id, locate_entry(seq, kind), link=seal.tip)
            seal.tip = get_tag(record)
            entries.append((kind, record))
        seal.length, previous = seal.length + len(entries), seal.stored
        self._unsealed.discard(op.run_id)
        sealed = self._cipher.build_seal(
            op.run_id, keys=seal.keys, length=seal.length, tip=seal.tip, header=seal.header
        )
        seal.stored = sealed
        return replace(op, entries=tuple(entries), expected=expected, seal=sealed, previous_seal=previous)

    async def _load_seal(self, run_id: str) -> "NextSeal":
        if run_id not in self._seals:
            record = await self._backend.get_run(run_id)
            if record is None:  # the backend will refuse the operation
                self._seals[run_id] = NextSeal()
            else:
                seal = self._cipher.verify(record)
                self._seals[run_id] = NextSeal(record.seal, seal.keys, seal.length, seal.tip, seal.header)
        return self._seals[run_id]


@dataclass
class NextSeal:
    """What the seal of a run will cover after the operations so far; ``stored`` is the seal before the next one."""

    stored: bytes | None = None
    keys: tuple[bytes, ...] = ()
    length: int = 0
    tip: bytes = NO_LINK
    header: bytes = b""
