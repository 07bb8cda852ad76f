"""Authenticated encryption of workspaces, with the keys of encrypted runs.

Versions and manifests are bound to their workspace and their number. Chunks are named by a MAC of their digest, so that
names say nothing about the content, and bound to their names.
"""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from standfast.base.errors import WrongKey
from standfast.history.encryption.keys import EncryptionKey
from standfast.runtime._engine.run_cipher import Place, RunCipher
from standfast.runtime.errors import RunTampered
from standfast.store.operations import AppendVersions, PutBlob, RewriteVersions, SaveCheckpoint
from standfast.store.records import BlobRecord, CheckpointRecord, VersionRecord
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
