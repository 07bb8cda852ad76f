"""Documents: small records of any kind under a key, their reads and the operations on them."""

from collections.abc import Sequence
from typing import Any

from standfast.store import operations, preconditions
from standfast.store.records import DocumentRecord
from standfast.store.sql.connection import DatabaseConnection

_COLUMNS = "kind, name, data, revision, written_at"


def document_record_from_row(row: Sequence[Any]) -> DocumentRecord:
    return DocumentRecord(kind=row[0], key=row[1], data=bytes(row[2]), revision=row[3], at=row[4])


def get_document(db: DatabaseConnection, kind: str, key: str) -> DocumentRecord | None:
    row = db.fetch_one(
        f"SELECT {_COLUMNS} FROM {{_documents}} WHERE kind = :kind AND name = :name", {"kind": kind, "name": key}
    )
    return document_record_from_row(row) if row else None


def list_documents(
    db: DatabaseConnection, kind: str, *, limit: int, after: str, before: str | None, reverse: bool
) -> list[DocumentRecord]:
    where, params = "kind = :kind AND name > :after", dict[str, Any](kind=kind, after=after, limit=limit)
    if before is not None:
        where += " AND name < :before"
        params["before"] = before
    found = db.fetch_all(
        f"SELECT {_COLUMNS} FROM {{_documents}} WHERE {where} ORDER BY name{' DESC' if reverse else ''} LIMIT :limit",
        params,
    )
    return [document_record_from_row(row) for row in found]


def get_revision_for_update(db: DatabaseConnection, op: operations.PutDocument | operations.DeleteDocument) -> int:
    row = db.fetch_one(
        "SELECT revision FROM {_documents} WHERE kind = :kind AND name = :name" + db.lock_clause,
        {"kind": op.kind, "name": op.key},
    )
    return row[0] if row else 0


def put_document(db: DatabaseConnection, op: operations.PutDocument, now: float) -> None:
    found = get_revision_for_update(db, op)
    preconditions.check_document(op, found=found)
    values = {"kind": op.kind, "name": op.key, "data": op.data, "revision": found + 1, "now": now}
    if found:
        db.execute(
            "UPDATE {_documents} SET data = :data, revision = :revision, written_at = :now"
            " WHERE kind = :kind AND name = :name",
            values,
        )
    else:
        db.execute(
            f"INSERT INTO {{_documents}} ({_COLUMNS}) VALUES (:kind, :name, :data, :revision, :now)",
            values,
        )


def delete_document(db: DatabaseConnection, op: operations.DeleteDocument, now: float) -> None:
    preconditions.check_document(op, found=get_revision_for_update(db, op))
    db.execute("DELETE FROM {_documents} WHERE kind = :kind AND name = :name", {"kind": op.kind, "name": op.key})
