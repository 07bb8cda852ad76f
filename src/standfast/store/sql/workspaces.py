"""Reads of workspaces, and the operations on them inside a transaction that the caller begins and ends.

A blob counts the checkpoints that refer to it, in ``refs``: a checkpoint and the deletion of its blobs change the same
row, so that one waits for the other.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from standfast.base.errors import BlobsMissing, NotFound
from standfast.store import operations, preconditions
from standfast.store.records import BlobRecord, CheckpointRecord, FreedBlobs, VersionRecord, WorkspaceRecord
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


def append_versions(db: DatabaseConnection, op: operations.AppendVersions, now: float) -> None:
    found = get_workspace(db, op.key, lock_clause=db.lock_clause)
    preconditions.check_workspace(op, found=found)
    version = op.expected + len(op.versions)
    values = {"name": op.key, "workspace_id": op.workspace_id, "version": version, "now": now}
    if found is None:
        db.execute(
            "INSERT INTO {_workspaces} (name, workspace_id, version, created_at, updated_at)"
            " VALUES (:name, :workspace_id, :version, :now, :now)",
            values,
        )
    else:
        db.execute("UPDATE {_workspaces} SET version = :version, updated_at = :now WHERE name = :name", values)
    db.execute_many(
        "INSERT INTO {_versions} (name, version, data, created_at) VALUES (:name, :version, :data, :now)",
        [
            {"name": op.key, "version": number, "data": data, "now": now}
            for number, data in enumerate(op.versions, start=op.expected + 1)
        ],
    )


def rewrite_versions(db: DatabaseConnection, op: operations.RewriteVersions, now: float) -> None:
    preconditions.check_workspace(op, found=get_workspace(db, op.key, lock_clause=db.lock_clause))
    db.execute_many(
        "UPDATE {_versions} SET data = :data WHERE name = :name AND version = :version",
        [{"name": op.key, "version": number, "data": data} for number, data in enumerate(op.versions, start=1)],
    )


def save_checkpoint(db: DatabaseConnection, op: operations.SaveCheckpoint, now: float) -> None:
    found, place = get_workspace(db, op.key, lock_clause=db.lock_clause), {"name": op.key, "version": op.version}
    if found is None or found.workspace_id != op.workspace_id or not 1 <= op.version <= found.version:
        raise NotFound("workspace version", f"{op.key} {op.version}")
    if db.fetch_one("SELECT 1 FROM {_checkpoints} WHERE name = :name AND version = :version", place) is not None:
        return
    missing = [digest for digest in sorted(op.blobs) if not change_references(db, digest, 1)]
    if missing:
        raise BlobsMissing(missing)
    db.execute(
        "INSERT INTO {_checkpoints} (name, version, checkpoint_id, data, blobs, size, created_at)"
        " VALUES (:name, :version, :checkpoint_id, :data, :blobs, :size, :now)",
        {
            **place,
            "checkpoint_id": op.checkpoint_id,
            "data": op.data,
            "blobs": msgspec.json.encode(op.blobs).decode(),
            "size": op.size,
            "now": now,
        },
    )


def change_references(db: DatabaseConnection, digest: str, change: int) -> bool:
    """Change the number of references to a blob; return False if there is no such blob."""
    target = {"digest": digest}
    if db.fetch_one("SELECT refs FROM {_blobs} WHERE digest = :digest" + db.lock_clause, target) is None:
        return False
    db.execute("UPDATE {_blobs} SET refs = refs + :change WHERE digest = :digest", {**target, "change": change})
    return True


def drop_checkpoint(db: DatabaseConnection, op: operations.DropCheckpoint, now: float) -> FreedBlobs:
    return drop_checkpoints(db, op.key, op.version, op.version)


def delete_workspace(db: DatabaseConnection, op: operations.DeleteWorkspace, now: float) -> FreedBlobs:
    found = get_workspace(db, op.key, lock_clause=db.lock_clause)
    if found is None:
        return FreedBlobs()
    freed = drop_checkpoints(db, op.key, 1, found.version)
    for table in ("{_versions}", "{_workspaces}"):
        db.execute(f"DELETE FROM {table} WHERE name = :name", {"name": op.key})
    return freed


def drop_checkpoints(db: DatabaseConnection, key: str, first: int, last: int) -> FreedBlobs:
    """Delete the checkpoints of these versions, and the blobs that no other checkpoint refers to."""
    where, params = "name = :name AND version >= :first AND version <= :last", dict[str, object](name=key)
    params |= {"first": first, "last": last}
    rows = db.fetch_all(f"SELECT blobs FROM {{_checkpoints}} WHERE {where}" + db.lock_clause, params)
    released = [digest for (blobs,) in rows for digest in msgspec.json.decode(blobs, type=list[str])]
    for digest in sorted(released):
        change_references(db, digest, -1)
    db.execute(f"DELETE FROM {{_checkpoints}} WHERE {where}", params)
    return delete_blobs(db, sorted(set(released)))


def delete_blobs(db: DatabaseConnection, digests: Iterable[str]) -> FreedBlobs:
    """Delete those of the blobs that no checkpoint refers to."""
    places: list[str | None] = []
    for digest in digests:
        row = db.fetch_one(
            "SELECT place FROM {_blobs} WHERE digest = :digest AND refs <= 0" + db.lock_clause, {"digest": digest}
        )
        if row is not None:
            for table in ("{_blobs}", "{_blob_data}"):
                db.execute(f"DELETE FROM {table} WHERE digest = :digest", {"digest": digest})
            places.append(row[0])
    return FreedBlobs(len(places), tuple(place for place in places if place is not None))


def put_blob(db: DatabaseConnection, op: operations.PutBlob, now: float) -> None:
    target = {"digest": op.digest, "now": now}
    if db.fetch_one("SELECT 1 FROM {_blobs} WHERE digest = :digest" + db.lock_clause, target) is not None:
        db.execute("UPDATE {_blobs} SET stored_at = :now WHERE digest = :digest", target)
        return
    db.execute(
        "INSERT INTO {_blobs} (digest, size, refs, place, stored_at) VALUES (:digest, :size, 0, :place, :now)",
        {**target, "size": op.size, "place": op.place},
    )
    if op.place is None:
        db.execute(
            "INSERT INTO {_blob_data} (digest, data) VALUES (:digest, :data)", {"digest": op.digest, "data": op.data}
        )


def sweep_blobs(db: DatabaseConnection, op: operations.SweepBlobs, now: float) -> FreedBlobs:
    aged = db.fetch_all(
        "SELECT digest FROM {_blobs} WHERE refs <= 0 AND stored_at < :before ORDER BY stored_at, digest LIMIT :limit",
        {"before": op.before, "limit": op.limit},
    )
    return delete_blobs(db, [digest for (digest,) in aged])
