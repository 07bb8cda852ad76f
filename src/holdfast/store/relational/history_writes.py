"""Every operation on a history, inside a transaction that the caller began and will end."""

from itertools import chain, repeat
from typing import Any

import msgspec

from holdfast.base.errors import HistoryMoved, KeyReused, SessionDamaged
from holdfast.store import contract, rules
from holdfast.store.contract import NOWHERE, Head
from holdfast.store.relational.connection import Connection
from holdfast.store.view import on_tape, uncovered

_FOREVER = 2**62
_stretches = msgspec.json.Decoder(list[tuple[int, int]])


def splice(db: Connection, op: contract.Splice, now: float) -> Head:
    rules.check_shape(op)
    row = db.one(
        "SELECT version, length, tape, next_seq, open_from, updated_at, seal IS NOT NULL FROM {sessions}"
        " WHERE session_id = :session_id" + db.lock,
        {"session_id": op.session_id},
    )
    # Looked up under the session's lock: a repeated batch waits for the first one and then finds it done.
    done = done_before(db, op.session_id, op.key) if op.key is not None else None
    if done is not None:
        return done
    version, length, tape, next_seq, open_from, updated_at, sealed = row or (0, 0, op.tape, 0, 0, now, False)
    if op.expected is not None and op.expected != version:
        raise HistoryMoved(op.session_id, expected=op.expected, found=Head(version, length))
    rules.check_seal(op, sealed=sealed, tape=tape, found=Head(version, length))
    if op.shape is not None and op.shape.archive and row:
        archive(db, op.session_id, resumes_at=next_seq + len(op.add), now=now)
    head = Head(version + 1, op.shape.length if op.shape else length + len(op.add))
    new = {
        "session_id": op.session_id,
        "version": head.version,
        "length": head.length,
        "next_seq": next_seq + len(op.add),
        "open_from": op.shape.open_from if op.shape else open_from,
        "seal": op.seal,
        "now": max(now, updated_at),
    }
    if row is None:
        create(db, {**new, "tape": tape, "closed": closed_json(op.shape), "owner": op.owner, "metadata": "{}"})
    else:
        update(db, op.shape, new)
    if op.add:
        insert_items(db, op, tape, next_seq)
    if op.links:
        db.many(
            "INSERT INTO {_links} (tape, session_id, upto, held) VALUES (:tape, :session_id, :upto, :held)",
            [
                {"tape": tape, "session_id": op.session_id, "upto": upto, "held": held_json(op.shape, tape)}
                for tape, upto in op.links
            ],
        )
    if op.key is not None:
        remember(db, op.session_id, op.key, head)
    return head


def done_before(db: Connection, session_id: str, key: contract.BatchKey) -> Head | None:
    """Where the history stood after the batch of this key, if there was one."""
    done = db.one(
        "SELECT digest, version, length FROM {_keys} WHERE session_id = :session_id AND name = :name" + db.lock,
        {"session_id": session_id, "name": key.name},
    )
    if done is None:
        return None
    if done[0] != key.digest:
        raise KeyReused(session_id, key.name)
    return Head(done[1], done[2])


def remember(db: Connection, session_id: str, key: contract.BatchKey, head: Head) -> None:
    db.run(
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


def create(db: Connection, new: dict[str, Any]) -> None:
    db.run(
        "INSERT INTO {sessions} (session_id, tape, version, length, next_seq, open_from, erased_upto, closed,"
        " generation, seal, owner, metadata, created_at, updated_at) VALUES (:session_id, :tape, :version, :length,"
        " :next_seq, :open_from, 0, :closed, 0, :seal, :owner, :metadata, :now, :now)",
        new,
    )


def update(db: Connection, shape: contract.Shape | None, new: dict[str, Any]) -> None:
    if shape is None:
        db.run(
            "UPDATE {sessions} SET version = :version, length = :length, next_seq = :next_seq, seal = :seal,"
            " updated_at = :now WHERE session_id = :session_id",
            new,
        )
    else:
        db.run(
            "UPDATE {sessions} SET version = :version, length = :length, next_seq = :next_seq, seal = :seal,"
            " open_from = :open_from, closed = :closed, updated_at = :now WHERE session_id = :session_id",
            {**new, "closed": closed_json(shape)},
        )


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


def held_json(shape: contract.Shape | None, tape: int) -> str:
    """What a fork begins with on a tape, which stays there as long as the fork."""
    return msgspec.json.encode(on_tape(shape.closed if shape else (), tape)).decode()


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
    rules.check_seal(op, sealed=sealed, tape=tape, found=found)
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
    """Destroy what was erased by the tape's session, or left behind by it, and what no fork began with."""
    owner = db.one("SELECT erased_upto FROM {sessions} WHERE tape = :tape" + db.lock, {"tape": tape})
    forks = db.all("SELECT upto, held FROM {_links} WHERE tape = :tape", {"tape": tape})
    shared = [stretch for upto, held in forks for stretch in stretches(upto, held)]
    for start, stop in uncovered(shared, owner[0] if owner else _FOREVER):
        db.run(
            "DELETE FROM {items} WHERE tape = :tape AND seq >= :start AND seq < :stop",
            {"tape": tape, "start": start, "stop": stop},
        )


def stretches(upto: int, held: Any) -> list[tuple[int, int]]:
    """What a link says that its fork began with; all that it may be when that cannot be read, or was not noted."""
    try:
        return _stretches.decode(held)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return [(0, upto)]


def annotate(db: Connection, op: contract.Annotate, now: float) -> Head:
    row = db.one(
        "SELECT version, length, metadata, owner, updated_at FROM {sessions} WHERE session_id = :session_id" + db.lock,
        {"session_id": op.session_id},
    )
    if row is None:
        # The version stays 0: nothing was said yet, and a first writer may still expect that.
        create(
            db,
            {
                "session_id": op.session_id,
                "tape": op.tape,
                "version": 0,
                "length": 0,
                "next_seq": 0,
                "open_from": 0,
                "closed": closed_json(None),
                "seal": None,
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
