"""Reads of runs, approvals and leases, on a connection, and of the runs to claim next."""

import heapq
from collections.abc import Sequence
from typing import Any

from standfast.store.records import (
    CLAIMABLE_RUN_STATUSES,
    HOLDING_RUN_STATUSES,
    QUEUED_RUN_STATUSES,
    ApprovalPlace,
    ApprovalRecord,
    ChangedApproval,
    Lease,
    LogEntry,
    QueueDepth,
    RunRecord,
)
from standfast.store.sql.connection import DatabaseConnection

RUN_COLUMNS = (
    "run_id, position, session_id, status, revision, data, journal_length, event_length, parent, seal, queue_name,"
    " queue_rank, queue_share, queue_behind, created_at, updated_at"
)
# Statuses are written into the statements, because a planner that does not know them does not use a partial index.
_SHARES_AT_ONCE = 16
_LANE = "status = '{status}' AND queue_behind = 0 AND queue_name = :queue"


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


def list_claimable(db: DatabaseConnection, queues: Sequence[str], *, limit: int, after: str | None) -> list[RunRecord]:
    lanes = _list_lanes(db, queues)
    found: list[RunRecord] = []
    while lanes and len(found) < limit:
        rank, status_index, queue_index = heapq.heappop(lanes)
        status, queue = CLAIMABLE_RUN_STATUSES[status_index], queues[queue_index]
        found += _list_lane(db, status, queue, rank, limit=limit - len(found), after=after)
        if len(found) < limit:
            query = f"SELECT MIN(queue_rank) FROM {{_runs}} WHERE {_LANE.format(status=status)} AND queue_rank > :rank"
            row = db.fetch_one(query, {"queue": queue, "rank": rank})
            if row is not None and row[0] is not None:
                heapq.heappush(lanes, (row[0], status_index, queue_index))
    return found


def _list_lanes(db: DatabaseConnection, queues: Sequence[str]) -> list[tuple[int, int, int]]:
    """Return a heap of (lowest rank, index of the status, index of the queue), without those in which nothing waits."""
    selects, params = [], dict[str, Any]()
    for queue_index, queue in enumerate(queues):
        params[f"queue_{queue_index}"] = queue
        for status_index, status in enumerate(CLAIMABLE_RUN_STATUSES):
            where = f"status = '{status}' AND queue_behind = 0 AND queue_name = :queue_{queue_index}"
            selects.append(
                f"SELECT (SELECT MIN(queue_rank) FROM {{_runs}} WHERE {where}), {status_index}, {queue_index}"
            )
    if not selects:
        return []
    lanes = [(row[0], row[1], row[2]) for row in db.fetch_all(" UNION ALL ".join(selects), params)]
    lanes = [lane for lane in lanes if lane[0] is not None]
    heapq.heapify(lanes)
    return lanes


def _list_lane(
    db: DatabaseConnection, status: str, queue: str, rank: int, *, limit: int, after: str | None
) -> list[RunRecord]:
    """Return the first runs of each share in turn."""
    lane = f"{_LANE.format(status=status)} AND queue_rank = :rank"
    params = {"queue": queue, "rank": rank, "limit": limit}
    shares = [] if after is None else _list_shares(db, lane, "AND queue_share > :after", {**params, "after": after})
    if len(shares) < limit:
        more, known = _list_shares(db, lane, "", params), set(shares)
        shares = (shares + [share for share in more if share not in known])[:limit]
    if not shares:
        return []
    rows: dict[str, list[RunRecord]] = {share: [] for share in shares}
    # Some at a time, because drivers do not keep long statements prepared, nor any number of them.
    for start in range(0, len(shares), _SHARES_AT_ONCE):
        names = {f"share_{index}": share for index, share in enumerate(shares[start : start + _SHARES_AT_ONCE])}
        heads = [
            f"SELECT {RUN_COLUMNS} FROM (SELECT {RUN_COLUMNS} FROM {{_runs}} WHERE {lane} AND queue_share = :{name}"
            f" ORDER BY position LIMIT :heads) AS {name}"
            for name in names
        ]
        values = {"queue": queue, "rank": rank, "heads": -(-limit // len(shares)), **names}
        for run in map(run_record_from_row, db.fetch_all(" UNION ALL ".join(heads), values)):
            rows[run.share].append(run)
    turns = range(max(map(len, rows.values())))
    for runs in rows.values():
        runs.sort(key=lambda run: run.order)
    return [runs[turn] for turn in turns for runs in rows.values() if turn < len(runs)][:limit]


def _list_shares(db: DatabaseConnection, lane: str, condition: str, params: dict[str, Any]) -> list[str]:
    """Return the first shares of a lane, found by jumping from one to the next in the index."""
    return [
        row[0]
        for row in db.fetch_all(
            "WITH RECURSIVE shares (share, number) AS ("
            f"SELECT (SELECT MIN(queue_share) FROM {{_runs}} WHERE {lane} {condition}), 1"
            f" UNION ALL SELECT (SELECT MIN(queue_share) FROM {{_runs}} WHERE {lane} AND queue_share > share),"
            " number + 1 FROM shares WHERE share IS NOT NULL AND number < :limit)"
            " SELECT share FROM shares WHERE share IS NOT NULL ORDER BY number",
            params,
        )
    ]


def list_waiting_queues(db: DatabaseConnection) -> list[str]:
    found: set[str] = set()
    for status in CLAIMABLE_RUN_STATUSES:
        lane = f"FROM {{_runs}} WHERE status = '{status}' AND queue_behind = 0"
        found.update(
            row[0]
            for row in db.fetch_all(
                f"WITH RECURSIVE queues (queue) AS (SELECT (SELECT MIN(queue_name) {lane})"
                f" UNION ALL SELECT (SELECT MIN(queue_name) {lane} AND queue_name > queue) FROM queues"
                " WHERE queue IS NOT NULL) SELECT queue FROM queues WHERE queue IS NOT NULL",
                {},
            )
        )
    return sorted(found)


def list_queue_depths(db: DatabaseConnection) -> list[QueueDepth]:
    statuses = ", ".join(f"'{status}'" for status in CLAIMABLE_RUN_STATUSES)
    found = db.fetch_all(
        "SELECT queue_name, status, queue_behind, COUNT(*), MIN(created_at) FROM {_runs}"
        f" WHERE status IN ({statuses}) GROUP BY queue_name, status, queue_behind"
        " ORDER BY queue_name, status, queue_behind",
        {},
    )
    return [
        QueueDepth(queue=row[0], status=row[1], behind=bool(row[2]), count=row[3], oldest_at=row[4]) for row in found
    ]
