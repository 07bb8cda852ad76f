"""The operations on histories, inside a transaction that the caller begins and ends."""

from itertools import chain, repeat
from typing import Any

import msgspec

from standfast.base.errors import KeyReused, SessionDamaged
from standfast.store import operations, preconditions
from standfast.store.records import EMPTY_HEAD, Head
from standfast.store.sql.connection import DatabaseConnection
from standfast.store.tape import get_ranges_on_tape, iter_gaps

_MAX_SEQ = 2**62
_ranges_decoder = msgspec.json.Decoder(list[tuple[int, int]])


def splice(db: DatabaseConnection, op: operations.Splice, now: float) -> Head:
    """Append items, replace the view, or both; return the new head. A batch that was written before changes nothing."""
    preconditions.check_view_update(op)
    row = db.fetch_one(
        "SELECT version, length, tape, next_seq, open_from, updated_at, seal IS NOT NULL FROM {sessions}"
        " WHERE session_id = :session_id" + db.lock_clause,
        {"session_id": op.session_id},
    )
    # Read under the lock of the session: a repeated batch waits for the first one and then finds its result.
    done = find_batch_result(db, op.session_id, op.key) if op.key is not None else None
    if done is not None:
        return done
    version, length, tape, next_seq, open_from, updated_at, sealed = row or (0, 0, op.tape, 0, 0, now, False)
    preconditions.check_version(op.session_id, op.expected, found=Head(version, length))
    preconditions.check_seal(op, sealed=sealed, tape=tape, found=Head(version, length))
    if op.view_update is not None and op.view_update.archive and row:
        archive_generation(db, op.session_id, resumes_at=next_seq + len(op.add), now=now)
    head = Head(version + 1, op.view_update.length if op.view_update else length + len(op.add))
    new = {
        "session_id": op.session_id,
        "version": head.version,
        "length": head.length,
        "next_seq": next_seq + len(op.add),
        "open_from": op.view_update.open_from if op.view_update else open_from,
        "seal": op.seal,
        "now": max(now, updated_at),
    }
    if row is None:
        insert_session(
            db,
            {**new, "tape": tape, "closed": encode_closed_spans(op.view_update), "owner": op.owner, "metadata": "{}"},
        )
    else:
        update_session(db, op.view_update, new)
    if op.add:
        insert_items(db, op, tape, next_seq)
    if op.links:
        db.execute_many(
            "INSERT INTO {_links} (tape, session_id, upto, held) VALUES (:tape, :session_id, :upto, :held)",
            [
                {
                    "tape": tape,
                    "session_id": op.session_id,
                    "upto": upto,
                    "held": encode_held_ranges(op.view_update, tape),
                }
                for tape, upto in op.links
            ],
        )
    if op.key is not None:
        save_batch_key(db, op.session_id, op.key, head)
    return head


def find_batch_result(db: DatabaseConnection, session_id: str, key: operations.BatchKey) -> Head | None:
    """Return the head that the batch with this key produced, or ``None`` if the key is new.

    Raise :class:`KeyReused` if the key belongs to another batch.
    """
    done = db.fetch_one(
        "SELECT digest, version, length FROM {_keys} WHERE session_id = :session_id AND name = :name" + db.lock_clause,
        {"session_id": session_id, "name": key.name},
    )
    if done is None:
        return None
    if done[0] != key.digest:
        raise KeyReused(session_id, key.name)
    return Head(done[1], done[2])


def save_batch_key(db: DatabaseConnection, session_id: str, key: operations.BatchKey, head: Head) -> None:
    db.execute(
        "INSERT INTO {_keys} (session_id, name, digest, version, length)"
        " VALUES (:session_id, :name, :digest, :version, :length)",
        {
            "session_id": session_id,
            "name": key.name,
            "digest": key.digest,
            "version": head.version,
            "length": head.length,
        },
    )


def insert_session(db: DatabaseConnection, new: dict[str, Any]) -> None:
    db.execute(
        "INSERT INTO {sessions} (session_id, tape, version, length, next_seq, open_from, erased_upto, closed,"
        " generation, seal, owner, metadata, created_at, updated_at) VALUES (:session_id, :tape, :version, :length,"
        " :next_seq, :open_from, 0, :closed, 0, :seal, :owner, :metadata, :now, :now)",
        new,
    )


def update_session(db: DatabaseConnection, view_update: operations.ViewUpdate | None, new: dict[str, Any]) -> None:
    if view_update is None:
        db.execute(
            "UPDATE {sessions} SET version = :version, length = :length, next_seq = :next_seq, seal = :seal,"
            " updated_at = :now WHERE session_id = :session_id",
            new,
        )
    else:
        db.execute(
            "UPDATE {sessions} SET version = :version, length = :length, next_seq = :next_seq, seal = :seal,"
            " open_from = :open_from, closed = :closed, updated_at = :now WHERE session_id = :session_id",
            {**new, "closed": encode_closed_spans(view_update)},
        )


def insert_items(db: DatabaseConnection, op: operations.Splice, tape: int, start: int) -> None:
    places = [{"tape": tape, "seq": seq, "data": data} for seq, data in enumerate(op.add, start=start)]
    if db.words_expression and op.words:
        db.execute_many(
            f"INSERT INTO {{items}} (tape, seq, data, words) VALUES (:tape, :seq, :data, {db.words_expression})",
            [{**place, "words": words} for place, words in zip(places, chain(op.words, repeat("")), strict=False)],
        )
    else:
        db.execute_many("INSERT INTO {items} (tape, seq, data) VALUES (:tape, :seq, :data)", places)


def archive_generation(db: DatabaseConnection, session_id: str, *, resumes_at: int, now: float) -> None:
    """Store the present view of the session as a generation, and increment its generation number."""
    row = db.fetch_one(
        "SELECT generation, length, tape, open_from, next_seq, closed FROM {sessions} WHERE session_id = :session_id",
        {"session_id": session_id},
    )
    assert row is not None  # noqa: S101 - the caller read it in this transaction
    generation, length, tape, open_from, next_seq, closed = row
    spans = [*msgspec.json.decode(closed), [tape, open_from, next_seq]]
    db.execute(
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
    db.execute(
        "UPDATE {sessions} SET generation = generation + 1 WHERE session_id = :session_id",
        {"session_id": session_id},
    )


def encode_closed_spans(view_update: operations.ViewUpdate | None) -> str:
    return msgspec.json.encode(view_update.closed if view_update else ()).decode()


def encode_held_ranges(view_update: operations.ViewUpdate | None, tape: int) -> str:
    """Encode the ranges of a tape that a fork starts with. They are kept as long as the fork exists."""
    return msgspec.json.encode(get_ranges_on_tape(view_update.closed if view_update else (), tape)).decode()


def erase(db: DatabaseConnection, op: operations.Erase, now: float) -> Head:
    target = {"session_id": op.session_id}
    row = db.fetch_one(
        "SELECT version, length, tape, next_seq, updated_at, seal IS NOT NULL FROM {sessions}"
        " WHERE session_id = :session_id" + db.lock_clause,
        target,
    )
    found = Head(row[0], row[1]) if row else EMPTY_HEAD
    preconditions.check_version(op.session_id, op.expected, found=found)
    if row is None:
        return EMPTY_HEAD
    version, _, tape, next_seq, updated_at, sealed = row
    preconditions.check_seal(op, sealed=sealed, tape=tape, found=found)
    shared = [
        link[0]
        for link in db.fetch_all("SELECT tape FROM {_links} WHERE session_id = :session_id ORDER BY tape", target)
    ]
    for linked in shared:
        # Two forks of one tape that are erased concurrently would each see the other's link and keep the items forever.
        # The lock makes the second one wait.
        db.fetch_all(
            "SELECT upto FROM {_links} WHERE tape = :tape ORDER BY session_id" + db.lock_clause, {"tape": linked}
        )
    for table in ("{_links}", "{_generations}", "{_quarantine}", "{_keys}"):
        db.execute(f"DELETE FROM {table} WHERE session_id = :session_id", target)
    if op.forget:
        db.execute("DELETE FROM {sessions} WHERE session_id = :session_id", target)
    else:
        db.execute(
            "UPDATE {sessions} SET version = :version, length = 0, open_from = :next_seq, erased_upto = :next_seq,"
            " closed = '[]', seal = :seal, updated_at = :now WHERE session_id = :session_id",
            {
                **target,
                "version": version + 1,
                "next_seq": next_seq,
                "seal": op.seal,
                "now": max(now, updated_at),
            },
        )
    for affected in (tape, *shared):
        delete_unreferenced_items(db, affected)
    return EMPTY_HEAD if op.forget else Head(version + 1, 0)


def delete_unreferenced_items(db: DatabaseConnection, tape: int) -> None:
    """Delete the items that the tape's session erased, or all if it was forgotten, except those of forks."""
    owner = db.fetch_one("SELECT erased_upto FROM {sessions} WHERE tape = :tape" + db.lock_clause, {"tape": tape})
    forks = db.fetch_all("SELECT upto, held FROM {_links} WHERE tape = :tape", {"tape": tape})
    shared = [span for upto, held in forks for span in parse_held_ranges(upto, held)]
    for start, stop in iter_gaps(shared, owner[0] if owner else _MAX_SEQ):
        db.execute(
            "DELETE FROM {items} WHERE tape = :tape AND seq >= :start AND seq < :stop",
            {"tape": tape, "start": start, "stop": stop},
        )


def parse_held_ranges(upto: int, held: Any) -> list[tuple[int, int]]:
    """Return the ranges that a fork started with; everything before ``upto`` if they are missing or unreadable."""
    try:
        return _ranges_decoder.decode(held)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return [(0, upto)]


def annotate(db: DatabaseConnection, op: operations.Annotate, now: float) -> Head:
    row = db.fetch_one(
        "SELECT version, length, metadata, owner, updated_at FROM {sessions} WHERE session_id = :session_id"
        + db.lock_clause,
        {"session_id": op.session_id},
    )
    if row is None:
        # The version stays 0: the history is still empty, and its first writer may expect that.
        insert_session(
            db,
            {
                "session_id": op.session_id,
                "tape": op.tape,
                "version": 0,
                "length": 0,
                "next_seq": 0,
                "open_from": 0,
                "closed": encode_closed_spans(None),
                "seal": None,
                "owner": op.owner,
                "metadata": merge_metadata(op.session_id, "{}", op.metadata),
                "now": now,
            },
        )
        return EMPTY_HEAD
    version, length, metadata, owner, updated_at = row
    preconditions.check_owner(op, found=owner)
    db.execute(
        "UPDATE {sessions} SET metadata = :metadata, owner = :owner, updated_at = :now WHERE session_id = :session_id",
        {
            "session_id": op.session_id,
            "metadata": merge_metadata(op.session_id, metadata, op.metadata),
            "owner": op.owner if op.owner is not None else owner,
            "now": max(now, updated_at),
        },
    )
    return Head(version, length)


def merge_metadata(session_id: str, old: str, patch: dict[str, Any]) -> str:
    """Return the metadata after a patch, as JSON. ``None`` removes a key."""
    try:
        merged = {**msgspec.json.decode(old), **patch}
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise SessionDamaged(session_id, f"its metadata cannot be read: {error}") from None
    return msgspec.json.encode({key: value for key, value in merged.items() if value is not None}).decode()


def require_version(db: DatabaseConnection, op: operations.RequireVersion, now: float) -> None:
    row = db.fetch_one(
        "SELECT version, length FROM {sessions} WHERE session_id = :session_id" + db.lock_clause,
        {"session_id": op.session_id},
    )
    preconditions.check_version(op.session_id, op.version, found=Head(row[0], row[1]) if row else EMPTY_HEAD)


def quarantine(db: DatabaseConnection, op: operations.Quarantine, now: float) -> None:
    key = {"session_id": op.session_id, "tape": op.tape, "seq": op.seq}
    existing = db.fetch_one(
        "SELECT 1 FROM {_quarantine} WHERE session_id = :session_id AND tape = :tape AND seq = :seq" + db.lock_clause,
        key,
    )
    if existing is None:
        db.execute(
            "INSERT INTO {_quarantine} (session_id, tape, seq, reason, quarantined_at)"
            " VALUES (:session_id, :tape, :seq, :reason, :now)",
            {**key, "reason": op.reason, "now": now},
        )
