"""Apply the operations of a commit, inside a transaction that the caller begins and ends.

The operations on histories are in :mod:`~standfast.store.sql.history_writes`, those on workspaces in
:mod:`~standfast.store.sql.workspaces`, those on documents in :mod:`~standfast.store.sql.documents`.
"""

from collections.abc import Callable, Iterable
from typing import Any

from standfast.base.errors import NotFound, RunShared
from standfast.store import operations, preconditions
from standfast.store.operations import Op, OpResult
from standfast.store.records import JournalEnd, Lease
from standfast.store.sql import documents, history_writes, workspaces
from standfast.store.sql.connection import DatabaseConnection, as_bytes


def save_run(db: DatabaseConnection, op: operations.SaveRun, now: float) -> None:
    row = db.fetch_one("SELECT revision FROM {_runs} WHERE run_id = :run_id" + db.lock_clause, {"run_id": op.run_id})
    preconditions.check_revision(op, found=row[0] if row else 0)
    values = {
        "run_id": op.run_id,
        "session_id": op.session_id,
        "status": op.status,
        "revision": op.expected + 1,
        "data": op.data,
        "now": now,
    }
    # Priorities are stored negated, so that the index has the runs in the order in which they are claimed.
    rank = None if op.priority is None else -op.priority
    place = {"queue_name": op.queue, "queue_rank": rank, "queue_share": op.share}
    if row is None:
        if op.parent is not None:
            require_run(db, op.parent)
        db.execute(
            "INSERT INTO {_runs} (run_id, session_id, status, revision, data, journal_length, event_length, parent,"
            " queue_name, queue_rank, queue_share, created_at, updated_at)"
            " VALUES (:run_id, :session_id, :status, :revision, :data, 0, 0, :parent,"
            " :queue_name, :queue_rank, :queue_share, :now, :now)",
            {**values, "parent": op.parent, "queue_name": op.queue or "", "queue_rank": rank or 0}
            | {"queue_share": op.share or ""},
        )
    else:
        changed = {name: value for name, value in place.items() if value is not None}
        moves = "".join(f", {name} = :{name}" for name in changed)
        db.execute(
            "UPDATE {_runs} SET session_id = :session_id, status = :status, revision = :revision, data = :data,"
            f" updated_at = :now, queue_behind = 0{moves} WHERE run_id = :run_id",
            values | changed,
        )


def move_behind(db: DatabaseConnection, op: operations.MoveBehind, now: float) -> None:
    db.execute(
        "UPDATE {_runs} SET queue_behind = :behind WHERE run_id = :run_id AND status = 'queued'",
        {"run_id": op.run_id, "behind": int(op.behind)},
    )


def require_run(db: DatabaseConnection, run_id: str) -> None:
    """Lock a run, or raise :class:`NotFound`. The lock keeps it while a fork of it is created."""
    if db.fetch_one("SELECT 1 FROM {_runs} WHERE run_id = :run_id" + db.lock_clause, {"run_id": run_id}) is None:
        raise NotFound("run", run_id)


def delete_run(db: DatabaseConnection, op: operations.DeleteRun, now: float) -> None:
    target = {"run_id": op.run_id}
    row = db.fetch_one("SELECT revision FROM {_runs} WHERE run_id = :run_id" + db.lock_clause, target)
    preconditions.check_revision(op, found=row[0] if row else 0)
    fork = db.fetch_one("SELECT run_id FROM {_runs} WHERE parent = :run_id ORDER BY position LIMIT 1", target)
    if fork is not None:
        raise RunShared(op.run_id, fork_id=fork[0])
    for table in ("{_runs}", "{_journal}", "{_events}", "{_approvals}"):
        db.execute(f"DELETE FROM {table} WHERE run_id = :run_id", target)


def append_journal(db: DatabaseConnection, op: operations.AppendJournal, now: float) -> JournalEnd:
    row = db.fetch_one(
        "SELECT journal_length, seal FROM {_runs} WHERE run_id = :run_id" + db.lock_clause, {"run_id": op.run_id}
    )
    if row is None:
        raise NotFound("run", op.run_id)
    preconditions.check_journal(op, seal=as_bytes(row[1]), found=row[0])
    insert_log(db, op.run_id, table="{_journal}", entries=op.entries, length=row[0], now=now)
    db.execute(
        "UPDATE {_runs} SET journal_length = :length, seal = :seal WHERE run_id = :run_id",
        {"run_id": op.run_id, "length": row[0] + len(op.entries), "seal": op.seal},
    )
    return JournalEnd(row[0] + len(op.entries), now)


def append_events(db: DatabaseConnection, op: operations.AppendEvents, now: float) -> None:
    row = db.fetch_one(
        "SELECT event_length FROM {_runs} WHERE run_id = :run_id" + db.lock_clause, {"run_id": op.run_id}
    )
    if row is None:
        raise NotFound("run", op.run_id)
    insert_log(db, op.run_id, table="{_events}", entries=op.events, length=row[0], now=now)
    db.execute(
        "UPDATE {_runs} SET event_length = :length WHERE run_id = :run_id",
        {"run_id": op.run_id, "length": row[0] + len(op.events)},
    )


def insert_log(
    db: DatabaseConnection,
    run_id: str,
    *,
    table: str,
    entries: tuple[tuple[str, bytes], ...],
    length: int,
    now: float,
) -> None:
    """Insert the entries after the first ``length``. The row of the run is locked, so the sequence has no gaps."""
    db.execute_many(
        f"INSERT INTO {table} (run_id, seq, kind, data, logged_at) VALUES (:run_id, :seq, :kind, :data, :now)",
        [
            {"run_id": run_id, "seq": seq, "kind": kind, "data": data, "now": now}
            for seq, (kind, data) in enumerate(entries, start=length + 1)
        ],
    )


def rewrite_run(db: DatabaseConnection, op: operations.RewriteRun, now: float) -> None:
    row = db.fetch_one(
        "SELECT seal, journal_length, event_length FROM {_runs} WHERE run_id = :run_id" + db.lock_clause,
        {"run_id": op.run_id},
    )
    if row is None:
        raise NotFound("run", op.run_id)
    preconditions.check_rewrite(op, seal=as_bytes(row[0]), journal=row[1], events=row[2])
    db.execute(
        "UPDATE {_runs} SET data = :data, seal = :seal WHERE run_id = :run_id",
        {"run_id": op.run_id, "data": op.data, "seal": op.seal},
    )
    for table, entries in (("{_journal}", op.journal), ("{_events}", op.events)):
        db.execute_many(
            f"UPDATE {table} SET data = :data WHERE run_id = :run_id AND seq = :seq",
            [{"run_id": op.run_id, "seq": seq, "data": data} for seq, data in enumerate(entries, start=1)],
        )


def count_approval_change(db: DatabaseConnection) -> int:
    """Return the number of the next change of an approval. Others who change one wait until this commit has ended."""
    row = db.fetch_one("SELECT value FROM {_counters} WHERE name = 'approvals'" + db.lock_clause, {})
    number: int = row[0] + 1 if row else 2
    if row is None:
        db.execute("INSERT INTO {_counters} (name, value) VALUES ('approvals', :number)", {"number": number})
    else:
        db.execute("UPDATE {_counters} SET value = :number WHERE name = 'approvals'", {"number": number})
    return number


def save_approval(db: DatabaseConnection, op: operations.SaveApproval, now: float) -> None:
    # First of all, because two commits that change the same approvals in different order would block each other.
    changed = count_approval_change(db)
    row = db.fetch_one(
        "SELECT revision FROM {_approvals} WHERE approval_id = :approval_id" + db.lock_clause,
        {"approval_id": op.approval_id},
    )
    preconditions.check_revision(op, found=row[0] if row else 0)
    values = {
        "approval_id": op.approval_id,
        "run_id": op.run_id,
        "session_id": op.session_id,
        "status": op.status,
        "revision": op.expected + 1,
        "data": op.data,
        "now": now,
        "expires_at": op.expires_at,
        "changed": changed,
    }
    if row is None:
        db.execute(
            "INSERT INTO {_approvals} (approval_id, run_id, session_id, status, revision, data, requested_at,"
            " expires_at, changed) VALUES (:approval_id, :run_id, :session_id, :status, :revision, :data, :now,"
            " :expires_at, :changed)",
            values,
        )
    else:
        db.execute(
            "UPDATE {_approvals} SET status = :status, revision = :revision, data = :data, expires_at = :expires_at,"
            " changed = :changed WHERE approval_id = :approval_id",
            values,
        )


def get_lease_for_update(db: DatabaseConnection, name: str) -> Lease | None:
    row = db.fetch_one(
        "SELECT owner, token, expires_at FROM {_leases} WHERE name = :name" + db.lock_clause, {"name": name}
    )
    return Lease(name, *row) if row else None


def acquire_lease(db: DatabaseConnection, op: operations.AcquireLease, now: float) -> Lease:
    held = get_lease_for_update(db, op.name)
    lease = preconditions.grant_lease(op, held, now)
    values = {"name": lease.name, "owner": lease.owner, "token": lease.token, "expires_at": lease.expires_at}
    if held is None:
        db.execute(
            "INSERT INTO {_leases} (name, owner, token, expires_at) VALUES (:name, :owner, :token, :expires_at)",
            values,
        )
    else:
        db.execute(
            "UPDATE {_leases} SET owner = :owner, token = :token, expires_at = :expires_at WHERE name = :name",
            values,
        )
    return lease


def renew_lease(db: DatabaseConnection, op: operations.RenewLease, now: float) -> Lease:
    held = preconditions.check_lease_token(op, get_lease_for_update(db, op.name))
    db.execute(
        "UPDATE {_leases} SET expires_at = :expires_at WHERE name = :name",
        {"name": op.name, "expires_at": now + op.ttl},
    )
    return Lease(op.name, held.owner, held.token, now + op.ttl)


def release_lease(db: DatabaseConnection, op: operations.ReleaseLease, now: float) -> None:
    # The row stays, with an empty owner, so that the token of the next owner is higher.
    db.execute(
        "UPDATE {_leases} SET owner = '', expires_at = 0 WHERE name = :name AND token = :token",
        {"name": op.name, "token": op.token},
    )


def check_fence(db: DatabaseConnection, op: operations.CheckFence, now: float) -> None:
    preconditions.check_lease_token(op, get_lease_for_update(db, op.name))


def apply(connection: DatabaseConnection, ops: Iterable[Op], now: float) -> list[OpResult]:
    """Apply the operations in order. After an exception the transaction must be rolled back."""
    return [_APPLIERS[type(op)](connection, op, now) for op in ops]


_APPLIERS: dict[type, Callable[[DatabaseConnection, Any, float], OpResult]] = {
    operations.Splice: history_writes.splice,
    operations.Erase: history_writes.erase,
    operations.Annotate: history_writes.annotate,
    operations.RequireVersion: history_writes.require_version,
    operations.Quarantine: history_writes.quarantine,
    operations.SaveRun: save_run,
    operations.MoveBehind: move_behind,
    operations.DeleteRun: delete_run,
    operations.AppendJournal: append_journal,
    operations.AppendEvents: append_events,
    operations.RewriteRun: rewrite_run,
    operations.SaveApproval: save_approval,
    operations.AppendVersions: workspaces.append_versions,
    operations.RewriteVersions: workspaces.rewrite_versions,
    operations.SaveCheckpoint: workspaces.save_checkpoint,
    operations.DropCheckpoint: workspaces.drop_checkpoint,
    operations.DeleteWorkspace: workspaces.delete_workspace,
    operations.PutBlob: workspaces.put_blob,
    operations.SweepBlobs: workspaces.sweep_blobs,
    operations.PutDocument: documents.put_document,
    operations.DeleteDocument: documents.delete_document,
    operations.AcquireLease: acquire_lease,
    operations.RenewLease: renew_lease,
    operations.ReleaseLease: release_lease,
    operations.CheckFence: check_fence,
}
