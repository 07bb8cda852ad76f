"""Every operation of a commit, inside a transaction that the caller began and will end."""

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

import msgspec

from holdfast.base.errors import (
    ApprovalMoved,
    FenceLost,
    HistoryMoved,
    InvalidInput,
    KeyReused,
    NotFound,
    RunMoved,
    SessionDamaged,
)
from holdfast.store import contract
from holdfast.store.contract import NOWHERE, Head, Lease, LeaseHeld, Op, Outcome
from holdfast.store.relational.connection import Connection

_FOREVER = 2**62


def apply(connection: Connection, ops: Iterable[Op], now: float) -> list[Outcome]:
    """Do the operations in order. An exception means that the transaction must be rolled back."""
    return [_APPLIERS[type(op)](connection, op, now) for op in ops]


def splice(db: Connection, op: contract.Splice, now: float) -> Head:
    if op.shape is not None and op.expected is None:
        raise InvalidInput("a shape needs the version it was made for")
    row = db.one(
        "SELECT version, length, tape, next_seq, open_from, updated_at, seal IS NOT NULL FROM {sessions}"
        " WHERE session_id = :session_id" + db.lock,
        {"session_id": op.session_id},
    )
    # Looked up under the session's lock: a repeated batch waits for the first one and then finds it done.
    if op.key is not None:
        done = db.one(
            "SELECT digest, version, length FROM {_keys} WHERE session_id = :session_id AND name = :name" + db.lock,
            {"session_id": op.session_id, "name": op.key.name},
        )
        if done is not None:
            if done[0] != op.key.digest:
                raise KeyReused(op.session_id, op.key.name)
            return Head(done[1], done[2])
    version, length, tape, next_seq, open_from, updated_at, sealed = row or (0, 0, op.tape, 0, 0, now, False)
    if op.expected is not None and op.expected != version:
        raise HistoryMoved(op.session_id, expected=op.expected, found=Head(version, length))
    contract.check_seal(op, sealed=sealed, tape=tape, found=Head(version, length))
    if op.shape is not None and op.shape.archive and row:
        archive(db, op.session_id, resumes_at=next_seq + len(op.add), now=now)
    new: dict[str, Any] = {
        "session_id": op.session_id,
        "version": version + 1,
        "length": op.shape.length if op.shape else length + len(op.add),
        "next_seq": next_seq + len(op.add),
        "open_from": op.shape.open_from if op.shape else open_from,
        "seal": op.seal,
        "now": max(now, updated_at),
    }
    if row is None:
        db.run(
            "INSERT INTO {sessions} (session_id, tape, version, length, next_seq, open_from, erased_upto, closed,"
            " generation, seal, owner, metadata, created_at, updated_at) VALUES (:session_id, :tape, :version, :length,"
            " :next_seq, :open_from, 0, :closed, 0, :seal, :owner, '{}', :now, :now)",
            {**new, "tape": tape, "closed": closed_json(op.shape), "owner": op.owner},
        )
    elif op.shape is None:
        db.run(
            "UPDATE {sessions} SET version = :version, length = :length, next_seq = :next_seq, seal = :seal,"
            " updated_at = :now WHERE session_id = :session_id",
            new,
        )
    else:
        db.run(
            "UPDATE {sessions} SET version = :version, length = :length, next_seq = :next_seq, seal = :seal,"
            " open_from = :open_from, closed = :closed, updated_at = :now WHERE session_id = :session_id",
            {**new, "closed": closed_json(op.shape)},
        )
    if op.add:
        insert_items(db, op, tape, next_seq)
    if op.links:
        db.many(
            "INSERT INTO {_links} (tape, session_id, upto) VALUES (:tape, :session_id, :upto)",
            [{"tape": tape, "session_id": op.session_id, "upto": upto} for tape, upto in op.links],
        )
    head = Head(new["version"], new["length"])
    if op.key is not None:
        db.run(
            "INSERT INTO {_keys} (session_id, name, digest, version, length)"
            " VALUES (:session_id, :name, :digest, :version, :length)",
            {
                "session_id": op.session_id,
                "name": op.key.name,
                "digest": op.key.digest,
                "version": head.version,
                "length": head.length,
            },
        )
    return head


def insert_items(db: Connection, op: contract.Splice, tape: int, start: int) -> None:
    places = [{"tape": tape, "seq": seq, "data": data} for seq, data in enumerate(op.add, start=start)]
    if db.words and op.words:
        db.many(
            f"INSERT INTO {{items}} (tape, seq, data, words) VALUES (:tape, :seq, :data, {db.words})",
            [{**place, "words": words} for place, words in zip(places, chain(op.words, repeat("")), strict=False)],
        )
    else:
        db.many("INSERT INTO {items} (tape, seq, data) VALUES (:tape, :seq, :data)", places)


def archive(db: Connection, session_id: str, *, resumes_at: int, now: float) -> None:
    """Keep what the session shows now as a generation, and count one further."""
    row = db.one(
        "SELECT generation, length, tape, open_from, next_seq, closed FROM {sessions} WHERE session_id = :session_id",
        {"session_id": session_id},
    )
    assert row is not None  # noqa: S101 - the caller has just read it in this transaction
    generation, length, tape, open_from, next_seq, closed = row
    spans = [*msgspec.json.decode(closed), [tape, open_from, next_seq]]
    db.run(
        "INSERT INTO {_generations} (session_id, generation, length, spans, resumes_at, replaced_at)"
        " VALUES (:session_id, :generation, :length, :spans, :resumes_at, :now)",
        {
            "session_id": session_id,
            "generation": generation,
            "length": length,
            "spans": msgspec.json.encode(spans).decode(),
            "resumes_at": resumes_at,
            "now": now,
        },
    )
    db.run(
        "UPDATE {sessions} SET generation = generation + 1 WHERE session_id = :session_id",
        {"session_id": session_id},
    )


def closed_json(shape: contract.Shape | None) -> str:
    return msgspec.json.encode(shape.closed if shape else ()).decode()


def erase(db: Connection, op: contract.Erase, now: float) -> Head:
    who = {"session_id": op.session_id}
    row = db.one(
        "SELECT version, length, tape, next_seq, updated_at, seal IS NOT NULL FROM {sessions}"
        " WHERE session_id = :session_id" + db.lock,
        who,
    )
    found = Head(row[0], row[1]) if row else NOWHERE
    if op.expected is not None and op.expected != found.version:
        raise HistoryMoved(op.session_id, expected=op.expected, found=found)
    if row is None:
        return NOWHERE
    version, _, tape, next_seq, updated_at, sealed = row
    contract.check_seal(op, sealed=sealed, tape=tape, found=found)
    shared = [link[0] for link in db.all("SELECT tape FROM {_links} WHERE session_id = :session_id ORDER BY tape", who)]
    for linked in shared:
        # Two forks that let go of one tape at once would each leave it to the other: the second waits here.
        db.all("SELECT upto FROM {_links} WHERE tape = :tape ORDER BY session_id" + db.lock, {"tape": linked})
    for table in ("{_links}", "{_generations}", "{_quarantine}", "{_keys}"):
        db.run(f"DELETE FROM {table} WHERE session_id = :session_id", who)
    if op.forget:
        db.run("DELETE FROM {sessions} WHERE session_id = :session_id", who)
    else:
        db.run(
            "UPDATE {sessions} SET version = :version, length = 0, open_from = :next_seq, erased_upto = :next_seq,"
            " closed = '[]', seal = :seal, updated_at = :now WHERE session_id = :session_id",
            {
                **who,
                "version": version + 1,
                "next_seq": next_seq,
                "seal": op.seal,
                "now": max(now, updated_at),
            },
        )
    for freed in (tape, *shared):
        sweep(db, freed)
    return NOWHERE if op.forget else Head(version + 1, 0)


def sweep(db: Connection, tape: int) -> None:
    """Destroy what nobody shows any more: erased by the tape's session, or left behind by it, and in no fork."""
    owner = db.one("SELECT erased_upto FROM {sessions} WHERE tape = :tape" + db.lock, {"tape": tape})
    forks = db.one("SELECT MAX(upto) FROM {_links} WHERE tape = :tape", {"tape": tape})
    db.run(
        "DELETE FROM {items} WHERE tape = :tape AND seq >= :shared AND seq < :erased",
        {
            "tape": tape,
            "shared": (forks[0] if forks else None) or 0,
            "erased": owner[0] if owner else _FOREVER,
        },
    )


def annotate(db: Connection, op: contract.Annotate, now: float) -> Head:
    row = db.one(
        "SELECT version, length, metadata, owner, updated_at FROM {sessions} WHERE session_id = :session_id" + db.lock,
        {"session_id": op.session_id},
    )
    if row is None:
        # The version stays 0: nothing was said yet, and a first writer may still expect that.
        db.run(
            "INSERT INTO {sessions} (session_id, tape, version, length, next_seq, open_from, erased_upto, closed,"
            " generation, seal, owner, metadata, created_at, updated_at) VALUES (:session_id, :tape, 0, 0,"
            " 0, 0, 0, '[]', 0, NULL, :owner, :metadata, :now, :now)",
            {
                "session_id": op.session_id,
                "tape": op.tape,
                "owner": op.owner,
                "metadata": merged(op.session_id, "{}", op.metadata),
                "now": now,
            },
        )
        return NOWHERE
    version, length, metadata, owner, updated_at = row
    db.run(
        "UPDATE {sessions} SET metadata = :metadata, owner = :owner, updated_at = :now WHERE session_id = :session_id",
        {
            "session_id": op.session_id,
            "metadata": merged(op.session_id, metadata, op.metadata),
            "owner": op.owner if op.owner is not None else owner,
            "now": max(now, updated_at),
        },
    )
    return Head(version, length)


def merged(session_id: str, old: str, patch: dict[str, Any]) -> str:
    """Annotations after a patch; ``None`` removes a key."""
    try:
        both = {**msgspec.json.decode(old), **patch}
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise SessionDamaged(session_id, f"its annotations cannot be read: {error}") from None
    return msgspec.json.encode({key: value for key, value in both.items() if value is not None}).decode()


def require(db: Connection, op: contract.Require, now: float) -> None:
    row = db.one(
        "SELECT version, length FROM {sessions} WHERE session_id = :session_id" + db.lock,
        {"session_id": op.session_id},
    )
    if (row[0] if row else 0) != op.version:
        raise HistoryMoved(op.session_id, expected=op.version, found=Head(row[0], row[1]) if row else NOWHERE)


def quarantine(db: Connection, op: contract.Quarantine, now: float) -> None:
    key = {"session_id": op.session_id, "tape": op.tape, "seq": op.seq}
    known = db.one(
        "SELECT 1 FROM {_quarantine} WHERE session_id = :session_id AND tape = :tape AND seq = :seq" + db.lock,
        key,
    )
    if known is None:
        db.run(
            "INSERT INTO {_quarantine} (session_id, tape, seq, reason, quarantined_at)"
            " VALUES (:session_id, :tape, :seq, :reason, :now)",
            {**key, "reason": op.reason, "now": now},
        )


def save_run(db: Connection, op: contract.SaveRun, now: float) -> None:
    row = db.one(
        "SELECT revision FROM {_runs} WHERE run_id = :run_id" + db.lock,
        {"run_id": op.run_id},
    )
    found = row[0] if row else 0
    if found != op.expected:
        raise RunMoved(op.run_id, expected=op.expected, found=found)
    values = {
        "run_id": op.run_id,
        "session_id": op.session_id,
        "status": op.status,
        "revision": op.expected + 1,
        "data": op.data,
        "now": now,
    }
    if row is None:
        db.run(
            "INSERT INTO {_runs} (run_id, session_id, status, revision, data, journal_length, event_length, created_at,"
            " updated_at) VALUES (:run_id, :session_id, :status, :revision, :data, 0, 0, :now, :now)",
            values,
        )
    else:
        db.run(
            "UPDATE {_runs} SET session_id = :session_id, status = :status, revision = :revision, data = :data,"
            " updated_at = :now WHERE run_id = :run_id",
            values,
        )


def log(
    db: Connection,
    *,
    run_id: str,
    table: str,
    counter: str,
    entries: tuple[tuple[str, bytes], ...],
    now: float,
) -> None:
    """Append to one of a run's two logs; the run's row is the lock that keeps the sequence gapless."""
    row = db.one(f"SELECT {counter} FROM {{_runs}} WHERE run_id = :run_id" + db.lock, {"run_id": run_id})
    if row is None:
        raise NotFound("run", run_id)
    db.many(
        f"INSERT INTO {table} (run_id, seq, kind, data, logged_at) VALUES (:run_id, :seq, :kind, :data, :now)",
        [
            {"run_id": run_id, "seq": seq, "kind": kind, "data": data, "now": now}
            for seq, (kind, data) in enumerate(entries, start=row[0] + 1)
        ],
    )
    db.run(
        f"UPDATE {{_runs}} SET {counter} = :length WHERE run_id = :run_id",
        {"run_id": run_id, "length": row[0] + len(entries)},
    )


def journal(db: Connection, op: contract.Journal, now: float) -> None:
    log(db, run_id=op.run_id, table="{_journal}", counter="journal_length", entries=op.entries, now=now)


def emit(db: Connection, op: contract.Emit, now: float) -> None:
    log(db, run_id=op.run_id, table="{_events}", counter="event_length", entries=op.events, now=now)


def save_approval(db: Connection, op: contract.SaveApproval, now: float) -> None:
    row = db.one(
        "SELECT revision FROM {_approvals} WHERE approval_id = :approval_id" + db.lock,
        {"approval_id": op.approval_id},
    )
    found = row[0] if row else 0
    if found != op.expected:
        raise ApprovalMoved(op.approval_id, expected=op.expected, found=found)
    values = {
        "approval_id": op.approval_id,
        "run_id": op.run_id,
        "session_id": op.session_id,
        "status": op.status,
        "revision": op.expected + 1,
        "data": op.data,
        "now": now,
        "expires_at": op.expires_at,
    }
    if row is None:
        db.run(
            "INSERT INTO {_approvals} (approval_id, run_id, session_id, status, revision, data, requested_at,"
            " expires_at) VALUES (:approval_id, :run_id, :session_id, :status, :revision, :data, :now, :expires_at)",
            values,
        )
    else:
        db.run(
            "UPDATE {_approvals} SET status = :status, revision = :revision, data = :data, expires_at = :expires_at"
            " WHERE approval_id = :approval_id",
            values,
        )


def current_lease(db: Connection, name: str) -> Lease | None:
    row = db.one("SELECT owner, token, expires_at FROM {_leases} WHERE name = :name" + db.lock, {"name": name})
    return Lease(name, *row) if row else None


def take_lease(db: Connection, op: contract.TakeLease, now: float) -> Lease:
    held = current_lease(db, op.name)
    if held is not None and held.expires_at > now and held.owner != op.owner:
        raise LeaseHeld(op.name, owner=held.owner, expires_at=held.expires_at)
    keeps = held is not None and held.owner == op.owner and held.expires_at > now
    lease = Lease(op.name, op.owner, (held.token if held else 0) + (not keeps), now + op.ttl)
    values = {"name": lease.name, "owner": lease.owner, "token": lease.token, "expires_at": lease.expires_at}
    if held is None:
        db.run(
            "INSERT INTO {_leases} (name, owner, token, expires_at) VALUES (:name, :owner, :token, :expires_at)",
            values,
        )
    else:
        db.run(
            "UPDATE {_leases} SET owner = :owner, token = :token, expires_at = :expires_at WHERE name = :name",
            values,
        )
    return lease


def renew_lease(db: Connection, op: contract.RenewLease, now: float) -> Lease:
    held = current_lease(db, op.name)
    if held is None or held.token != op.token or not held.owner:
        raise FenceLost(op.name, expected=op.token, found=held.token if held else 0)
    db.run(
        "UPDATE {_leases} SET expires_at = :expires_at WHERE name = :name",
        {"name": op.name, "expires_at": now + op.ttl},
    )
    return Lease(op.name, held.owner, held.token, now + op.ttl)


def drop_lease(db: Connection, op: contract.DropLease, now: float) -> None:
    # The row stays with an empty owner, so that the token of the next owner is still a higher one.
    db.run(
        "UPDATE {_leases} SET owner = '', expires_at = 0 WHERE name = :name AND token = :token",
        {"name": op.name, "token": op.token},
    )


def fence(db: Connection, op: contract.Fence, now: float) -> None:
    held = current_lease(db, op.name)
    if held is None or held.token != op.token or not held.owner:
        raise FenceLost(op.name, expected=op.token, found=held.token if held else 0)


_APPLIERS: dict[type, Callable[[Connection, Any, float], Outcome]] = {
    contract.Splice: splice,
    contract.Erase: erase,
    contract.Annotate: annotate,
    contract.Require: require,
    contract.Quarantine: quarantine,
    contract.SaveRun: save_run,
    contract.Journal: journal,
    contract.Emit: emit,
    contract.SaveApproval: save_approval,
    contract.TakeLease: take_lease,
    contract.RenewLease: renew_lease,
    contract.DropLease: drop_lease,
    contract.Fence: fence,
}
