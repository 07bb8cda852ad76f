"""Reads of runs, approvals and leases, on a connection."""

from collections.abc import Sequence
from typing import Any

from standfast.store.records import (
    HOLDING_RUN_STATUSES,
    QUEUED_RUN_STATUSES,
    ApprovalPlace,
    ApprovalRecord,
    ChangedApproval,
    Lease,
    LogEntry,
    RunRecord,
)
from standfast.store.sql.connection import DatabaseConnection

RUN_COLUMNS = (
    "run_id, position, session_id, status, revision, data, journal_length, event_length, parent, seal, queue_name,"
    " queue_rank, queue_share, queue_behind, created_at, updated_at"
)


def run_record_from_row(row: Sequence[Any]) -> RunRecord:
    return RunRecord(
        run_id=row[0],
        order=row[1],
        session_id=row[2],
        status=row[3],
        revision=row[4],
        data=bytes(row[5]),
        journal_length=row[6],
        event_length=row[7],
        parent=row[8],
        seal=None if row[9] is None else bytes(row[9]),
        queue=row[10],
        priority=-row[11],
        share=row[12],
        behind=bool(row[13]),
        created_at=row[14],
        updated_at=row[15],
    )


def get_run(db: DatabaseConnection, run_id: str) -> RunRecord | None:
    row = db.fetch_one(f"SELECT {RUN_COLUMNS} FROM {{_runs}} WHERE run_id = :run_id", {"run_id": run_id})
    return run_record_from_row(row) if row else None


_OWNED = "session_id IN (SELECT session_id FROM {sessions} WHERE owner = :owner)"


def list_runs(
    db: DatabaseConnection,
    *,
    status: Sequence[str] | None,
    session_id: str | None,
    limit: int,
    after: int,
    owner: str | None = None,
    newest_first: bool = False,
) -> list[RunRecord]:
    params, order = dict[str, Any](after=after, limit=limit), "position DESC" if newest_first else "position"
    where = ["position < :after" if newest_first and after else "position > :after"]
    if owner is not None:
        where.append(_OWNED)
        params["owner"] = owner
    if session_id is not None:
        where.append("session_id = :session_id")
        params["session_id"] = session_id
    if status is None:
        return [run_record_from_row(row) for row in db.fetch_all(_build_runs_query(where, order), params)]
    if not status:
        return []
    # One SELECT per status, so that each reads only the rows that it returns, in the order of an index. With IN,
    # planners tend to scan all runs of the session.
    names = {f"status_{index}": name for index, name in enumerate(status)}
    selects = [
        f"SELECT {RUN_COLUMNS} FROM ({_build_runs_query([*where, f'status = :{name}'], order)}) AS {name}"
        for name in names
    ]
    found = db.fetch_all(f"{' UNION ALL '.join(selects)} ORDER BY {order} LIMIT :limit", params | names)
    return [run_record_from_row(row) for row in found]


def _build_runs_query(where: Sequence[str], order: str) -> str:
    return f"SELECT {RUN_COLUMNS} FROM {{_runs}} WHERE {' AND '.join(where)} ORDER BY {order} LIMIT :limit"


def read_log(db: DatabaseConnection, table: str, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
    found = db.fetch_all(
        f"SELECT seq, kind, data, logged_at FROM {table} WHERE run_id = :run_id AND seq > :after"
        " ORDER BY seq LIMIT :limit",
        {"run_id": run_id, "after": after, "limit": limit},
    )
    return [LogEntry(seq, kind, bytes(data), at) for seq, kind, data, at in found]


_APPROVAL_COLUMNS = "approval_id, run_id, session_id, status, revision, data, requested_at, expires_at"


def approval_record_from_row(row: Sequence[Any]) -> ApprovalRecord:
    return ApprovalRecord(
        approval_id=row[0],
        run_id=row[1],
        session_id=row[2],
        status=row[3],
        revision=row[4],
        data=bytes(row[5]),
        requested_at=row[6],
        expires_at=row[7],
    )


def get_approval(db: DatabaseConnection, approval_id: str) -> ApprovalRecord | None:
    row = db.fetch_one(f"SELECT {_APPROVAL_COLUMNS} FROM {{_approvals}} WHERE approval_id = :id", {"id": approval_id})
    return approval_record_from_row(row) if row else None


def list_approvals(
    db: DatabaseConnection,
    *,
    status: str | None,
    run_id: str | None,
    session_id: str | None,
    limit: int,
    after: str,
    owner: str | None = None,
) -> list[ApprovalRecord]:
    where, params = ["approval_id > :after"], dict[str, Any](after=after, limit=limit)
    if owner is not None:
        where.append(_OWNED)
        params["owner"] = owner
    for column, value in (("status", status), ("run_id", run_id), ("session_id", session_id)):
        if value is not None:
            where.append(f"{column} = :{column}")
            params[column] = value
    found = db.fetch_all(
        f"SELECT {_APPROVAL_COLUMNS} FROM {{_approvals}} WHERE {' AND '.join(where)} ORDER BY approval_id LIMIT :limit",
        params,
    )
    return [approval_record_from_row(row) for row in found]


def list_due_approvals(
    db: DatabaseConnection, *, status: str, at: float, limit: int, after: ApprovalRecord | None
) -> list[ApprovalRecord]:
    where, params = "status = :status AND expires_at <= :at", dict[str, Any](status=status, at=at, limit=limit)
    if after is not None:
        where += " AND expires_at >= :since AND (expires_at > :since OR approval_id > :last_id)"
        params |= {"since": after.expires_at, "last_id": after.approval_id}
    found = db.fetch_all(
        f"SELECT {_APPROVAL_COLUMNS} FROM {{_approvals}} WHERE {where} ORDER BY expires_at, approval_id LIMIT :limit",
        params,
    )
    return [approval_record_from_row(row) for row in found]


def list_changed_approvals(
    db: DatabaseConnection,
    *,
    after: ApprovalPlace,
    upto: int | None,
    status: str | None,
    limit: int,
    owner: str | None = None,
) -> list[ChangedApproval]:
    # The first condition alone is what an index can use.
    where = ["changed >= :number", "(changed > :number OR approval_id > :last_id)"]
    params: dict[str, Any] = {"number": after.number, "last_id": after.approval_id, "limit": limit}
    if owner is not None:
        where.append(_OWNED)
        params["owner"] = owner
    for condition, name, value in (("status =", "status", status), ("changed <=", "upto", upto)):
        if value is not None:
            where.append(f"{condition} :{name}")
            params[name] = value
    found = db.fetch_all(
        f"SELECT {_APPROVAL_COLUMNS}, changed FROM {{_approvals}} WHERE {' AND '.join(where)}"
        " ORDER BY changed, approval_id LIMIT :limit",
        params,
    )
    return [ChangedApproval(ApprovalPlace(row[8], row[0]), approval_record_from_row(row)) for row in found]


def count_approval_changes(db: DatabaseConnection) -> int:
    row = db.fetch_one("SELECT value FROM {_counters} WHERE name = 'approvals'", {})
    return row[0] if row else 1


def get_lease(db: DatabaseConnection, name: str) -> Lease | None:
    lease = get_latest_lease(db, name)
    return lease if lease is not None and lease.owner else None


def get_latest_lease(db: DatabaseConnection, name: str) -> Lease | None:
    """Return the lease as it was acquired or released last; a released one has no owner."""
    row = db.fetch_one("SELECT owner, token, expires_at FROM {_leases} WHERE name = :name", {"name": name})
    return Lease(name, *row) if row else None


_FIRST_RUNS_QUERY = " UNION ALL ".join(
    f"SELECT {RUN_COLUMNS} FROM (SELECT {RUN_COLUMNS} FROM {{_runs}} WHERE session_id = :session_id"
    f" AND status = '{status}' ORDER BY position LIMIT 1) AS first_{status}"
    for status in (*QUEUED_RUN_STATUSES, *HOLDING_RUN_STATUSES)
)


def find_first_runs(db: DatabaseConnection, session_id: str) -> tuple[RunRecord | None, RunRecord | None]:
    """Return the run that holds a session, and the queued run that starts next when the session is free."""
    holder = queued = None
    for row in db.fetch_all(_FIRST_RUNS_QUERY, {"session_id": session_id}):
        run = run_record_from_row(row)
        if run.status in HOLDING_RUN_STATUSES:
            holder = run if holder is None or run.order < holder.order else holder
        elif queued is None or QUEUED_RUN_STATUSES.index(run.status) < QUEUED_RUN_STATUSES.index(queued.status):
            queued = run
    return holder, queued
