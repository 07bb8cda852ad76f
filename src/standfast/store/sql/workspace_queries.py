"""Reads of workspaces, on a connection."""

from collections.abc import Sequence
from typing import Any

import msgspec

from standfast.store.records import BlobRecord, CheckpointRecord, VersionRecord, WorkspaceRecord
from standfast.store.sql.connection import DatabaseConnection, as_bytes

_WORKSPACE_COLUMNS = "name, workspace_id, version, created_at, updated_at"
_NO_UPPER_BOUND = 2**62


def workspace_from_row(row: Sequence[Any]) -> WorkspaceRecord:
    return WorkspaceRecord(key=row[0], workspace_id=row[1], version=row[2], created_at=row[3], updated_at=row[4])


def get_workspace(db: DatabaseConnection, key: str, *, lock_clause: str = "") -> WorkspaceRecord | None:
    row = db.fetch_one(
        f"SELECT {_WORKSPACE_COLUMNS} FROM {{_workspaces}} WHERE name = :name" + lock_clause, {"name": key}
    )
    return workspace_from_row(row) if row else None


def list_workspaces(db: DatabaseConnection, *, limit: int, after: str) -> list[WorkspaceRecord]:
    found = db.fetch_all(
        f"SELECT {_WORKSPACE_COLUMNS} FROM {{_workspaces}} WHERE name > :after ORDER BY name LIMIT :limit",
        {"after": after, "limit": limit},
    )
    return [workspace_from_row(row) for row in found]


def read_versions(db: DatabaseConnection, key: str, *, after: int, upto: int | None) -> list[VersionRecord]:
    found = db.fetch_all(
        "SELECT v.version, v.data, v.created_at, c.checkpoint_id, c.size FROM {_versions} v"
        " LEFT JOIN {_checkpoints} c ON c.name = v.name AND c.version = v.version"
        " WHERE v.name = :name AND v.version > :after AND v.version <= :upto ORDER BY v.version",
        {"name": key, "after": after, "upto": _NO_UPPER_BOUND if upto is None else upto},
    )
    return [
        VersionRecord(
            version=version,
            data=as_bytes(data) or b"",
            created_at=created_at,
            checkpoint_id=checkpoint_id,
            size=size or 0,
        )
        for version, data, created_at, checkpoint_id, size in found
    ]


def get_checkpoint(db: DatabaseConnection, key: str, version: int) -> CheckpointRecord | None:
    row = db.fetch_one(
        "SELECT checkpoint_id, data, blobs, size, created_at FROM {_checkpoints}"
        " WHERE name = :name AND version = :version",
        {"name": key, "version": version},
    )
    if row is None:
        return None
    return CheckpointRecord(
        checkpoint_id=row[0],
        key=key,
        version=version,
        data=as_bytes(row[1]) or b"",
        blobs=msgspec.json.decode(row[2], type=tuple[str, ...]),
        size=row[3],
        created_at=row[4],
    )


def find_blobs(db: DatabaseConnection, digests: Sequence[str]) -> list[BlobRecord]:
    found: dict[str, BlobRecord] = {}
    for start in range(0, len(digests), 100):
        names = {f"d{index}": digest for index, digest in enumerate(digests[start : start + 100])}
        placeholders = ", ".join(f":{name}" for name in names)
        rows = db.fetch_all(f"SELECT digest, size, place FROM {{_blobs}} WHERE digest IN ({placeholders})", names)
        found |= {row[0]: BlobRecord(digest=row[0], size=row[1], place=row[2]) for row in rows}
    return [found[digest] for digest in digests if digest in found]


def read_blob(db: DatabaseConnection, digest: str) -> bytes | None:
    row = db.fetch_one("SELECT data FROM {_blob_data} WHERE digest = :digest", {"digest": digest})
    return None if row is None else as_bytes(row[0])
