"""Find the runs to claim next. Each statement reads a few entries of an index, however many runs wait."""

import heapq
from collections.abc import Sequence
from typing import Any

from standfast.store.records import CLAIMABLE_RUN_STATUSES, QueueDepth, RunRecord
from standfast.store.sql.connection import DatabaseConnection
from standfast.store.sql.run_queries import RUN_COLUMNS, run_record_from_row

# Statuses are written into the statements, because a planner that does not know them does not use a partial index.
_SHARES_AT_ONCE = 16
_LANE = "status = '{status}' AND queue_behind = 0 AND queue_name = :queue"


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
