"""The workspaces and documents of the in-memory backend, and the operations on them."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from standfast.base.errors import BlobsMissing, NotFound
from standfast.store import operations, preconditions
from standfast.store.records import (
    BlobRecord,
    CheckpointRecord,
    DocumentRecord,
    FreedBlobs,
    VersionRecord,
    WorkspaceRecord,
)

K = TypeVar("K")
V = TypeVar("V")


class UndoLog:
    """Changes dictionaries, and logs how to undo the running commit."""

    def __init__(self) -> None:
        self.undo_steps: list[Callable[[], None]] = []

    def put(self, table: dict[K, V], key: K, value: V) -> None:
        """Set an entry, and log how to undo it."""
        if key in table:
            old = table[key]
            self.undo_steps.append(lambda: table.__setitem__(key, old))
        else:
            self.undo_steps.append(lambda: table.__delitem__(key))
        table[key] = value

    def delete(self, table: dict[K, V], key: K) -> None:
        old = table.pop(key)
        self.undo_steps.append(lambda: table.__setitem__(key, old))


class DocumentTables(UndoLog):
    """Documents by kind and key."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: dict[tuple[str, str], DocumentRecord] = {}

    def put_document(self, op: operations.PutDocument, now: float) -> None:
        found = self.get_revision(op)
        preconditions.check_document(op, found=found)
        new = DocumentRecord(kind=op.kind, key=op.key, data=op.data, revision=found + 1, at=now)
        self.put(self.documents, (op.kind, op.key), new)

    def delete_document(self, op: operations.DeleteDocument, now: float) -> None:
        found = self.get_revision(op)
        preconditions.check_document(op, found=found)
        if found:
            self.delete(self.documents, (op.kind, op.key))

    def get_revision(self, op: operations.PutDocument | operations.DeleteDocument) -> int:
        old = self.documents.get((op.kind, op.key))
        return old.revision if old else 0


class WorkspaceTables(UndoLog):
    """Dictionaries of workspaces. A blob has the time at which it was stored last."""

    def __init__(self) -> None:
        super().__init__()
        self.workspaces: dict[str, WorkspaceRecord] = {}
        self.versions: dict[tuple[str, int], VersionRecord] = {}
        self.checkpoints: dict[tuple[str, int], CheckpointRecord] = {}
        self.blobs: dict[str, tuple[BlobRecord, float]] = {}
        self.blob_data: dict[str, bytes] = {}

    def append_versions(self, op: operations.AppendVersions, now: float) -> None:
        old = self.workspaces.get(op.key)
        preconditions.check_workspace(op, found=old)
        new = WorkspaceRecord(
            key=op.key,
            workspace_id=op.workspace_id,
            version=op.expected + len(op.versions),
            created_at=old.created_at if old else now,
            updated_at=now,
        )
        self.put(self.workspaces, op.key, new)
        for version, data in enumerate(op.versions, start=op.expected + 1):
            self.put(self.versions, (op.key, version), VersionRecord(version=version, data=data, created_at=now))

    def rewrite_versions(self, op: operations.RewriteVersions, now: float) -> None:
        preconditions.check_workspace(op, found=self.workspaces.get(op.key))
        for version, data in enumerate(op.versions, start=1):
            place = (op.key, version)
            self.put(self.versions, place, msgspec.structs.replace(self.versions[place], data=data))

    def save_checkpoint(self, op: operations.SaveCheckpoint, now: float) -> None:
        workspace, place = self.workspaces.get(op.key), (op.key, op.version)
        if workspace is None or workspace.workspace_id != op.workspace_id or place not in self.versions:
            raise NotFound("workspace version", f"{op.key} {op.version}")
        if place in self.checkpoints:
            return
        if missing := [digest for digest in op.blobs if digest not in self.blobs]:
            raise BlobsMissing(sorted(missing))
        checkpoint = CheckpointRecord(
            checkpoint_id=op.checkpoint_id,
            key=op.key,
            version=op.version,
            data=op.data,
            blobs=op.blobs,
            size=op.size,
            created_at=now,
        )
        self.put(self.checkpoints, place, checkpoint)

    def drop_checkpoint(self, op: operations.DropCheckpoint, now: float) -> FreedBlobs:
        return self.drop_checkpoints([(op.key, op.version)] if (op.key, op.version) in self.checkpoints else [])

    def drop_checkpoints(self, places: Sequence[tuple[str, int]]) -> FreedBlobs:
        released = {digest for place in places for digest in self.checkpoints[place].blobs}
        for place in places:
            self.delete(self.checkpoints, place)
        return self.delete_blobs(sorted(released - self.list_referenced_blobs()))

    def list_referenced_blobs(self) -> set[str]:
        return {digest for checkpoint in self.checkpoints.values() for digest in checkpoint.blobs}

    def delete_blobs(self, digests: Sequence[str]) -> FreedBlobs:
        places: list[str] = []
        for digest in digests:
            blob, _ = self.blobs[digest]
            self.delete(self.blobs, digest)
            if blob.place is None:
                self.delete(self.blob_data, digest)
            else:
                places.append(blob.place)
        return FreedBlobs(len(digests), tuple(places))

    def delete_workspace(self, op: operations.DeleteWorkspace, now: float) -> FreedBlobs:
        if op.key not in self.workspaces:
            return FreedBlobs()
        self.delete(self.workspaces, op.key)
        for place in [place for place in self.versions if place[0] == op.key]:
            self.delete(self.versions, place)
        return self.drop_checkpoints([place for place in self.checkpoints if place[0] == op.key])

    def put_blob(self, op: operations.PutBlob, now: float) -> None:
        stored = self.blobs.get(op.digest)
        if stored is not None:
            self.put(self.blobs, op.digest, (stored[0], now))
            return
        if op.place is None:
            self.put(self.blob_data, op.digest, op.data)
        self.put(self.blobs, op.digest, (BlobRecord(digest=op.digest, size=op.size, place=op.place), now))

    def sweep_blobs(self, op: operations.SweepBlobs, now: float) -> FreedBlobs:
        referenced = self.list_referenced_blobs()
        aged = [
            (stored_at, digest)
            for digest, (_, stored_at) in self.blobs.items()
            if stored_at < op.before and digest not in referenced
        ]
        return self.delete_blobs([digest for _, digest in sorted(aged)[: op.limit]])
