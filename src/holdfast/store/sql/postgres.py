"""What only PostgreSQL does: a commit as one call of a function, and words indexed as they are written.

The function and its helpers stand in ``postgres_commit.sql``; this module speaks with them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from holdfast.base.errors import ApprovalMoved, FenceLost, HistoryMoved, HoldfastError, KeyReused, NotFound, RunMoved
from holdfast.store import contract, rules
from holdfast.store.contract import Found, Head, Lease, LeaseHeld, Op, Outcome
from holdfast.store.relational.connection import Connection
from holdfast.store.relational.history_writes import closed_json, held_json
from holdfast.store.relational.reads import as_bytes

CALL = "SELECT CAST({_commit}(CAST(:ops AS jsonb), CAST(:blobs AS bytea[]), CAST(:now AS double precision)) AS text)"
WORDS = "array_to_tsvector(array_remove(string_to_array(nullif(CAST(:words AS text), ''), ' '), ''))"

Fields = dict[str, Any]


class Call:
    """A commit as the function takes it. Bytes may hold anything, so they travel beside the JSON, not in it."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.blobs: list[bytes] = []
        fields = [{"op": type(op).__struct_config__.tag, **_FIELDS[type(op)](self, op)} for op in ops]
        # A field that is not there is NULL over there.
        present = [{name: value for name, value in op.items() if value is not None} for op in fields]
        self.ops = msgspec.json.encode(present).decode()

    def put(self, *blobs: bytes) -> int:
        """The place of the first of these in the array, which begins with 1."""
        self.blobs.extend(blobs)
        return len(self.blobs) - len(blobs) + 1

    def splice(self, op: contract.Splice) -> Fields:
        rules.check_shape(op)
        return {
            "session_id": op.session_id,
            "added": len(op.add),
            "blob": self.put(*op.add),
            "words": op.words or None,
            "expected": op.expected,
            "key": op.key and op.key.name,
            "digest": op.key and op.key.digest,
            "seal": None if op.seal is None else self.put(op.seal),
            "tape": op.tape,
            "links": [(tape, upto, held_json(op.shape, tape)) for tape, upto in op.links] or None,
            "owner": op.owner,
            **(self.shape(op.shape) if op.shape else {}),
        }

    def shape(self, shape: contract.Shape) -> Fields:
        return {
            "closed": closed_json(shape),
            "open_from": shape.open_from,
            "length": shape.length,
            "archive": shape.archive,
        }

    def erase(self, op: contract.Erase) -> Fields:
        return {
            "session_id": op.session_id,
            "expected": op.expected,
            "forget": op.forget,
            "seal": None if op.seal is None else self.put(op.seal),
        }

    def annotate(self, op: contract.Annotate) -> Fields:
        # As text, so that its numbers and escapes stay as they are.
        metadata = msgspec.json.encode(op.metadata).decode()
        return {"session_id": op.session_id, "metadata": metadata, "owner": op.owner, "tape": op.tape}

    def save(self, op: contract.SaveRun | contract.SaveApproval) -> Fields:
        return {**self.as_they_are(op), "data": None, "blob": self.put(op.data)}

    def journal(self, op: contract.Journal) -> Fields:
        return self.log(op.run_id, op.entries)

    def emit(self, op: contract.Emit) -> Fields:
        return self.log(op.run_id, op.events)

    def log(self, run_id: str, entries: tuple[tuple[str, bytes], ...]) -> Fields:
        return {
            "run_id": run_id,
            "kinds": [kind for kind, _ in entries],
            "blob": self.put(*(data for _, data in entries)),
        }

    def as_they_are(self, op: Op) -> Fields:
        return {name: getattr(op, name) for name in op.__struct_fields__}


_FIELDS: dict[type, Callable[[Call, Any], Fields]] = {
    contract.Splice: Call.splice,
    contract.Erase: Call.erase,
    contract.Annotate: Call.annotate,
    contract.Require: Call.as_they_are,
    contract.Quarantine: Call.as_they_are,
    contract.SaveRun: Call.save,
    contract.Journal: Call.journal,
    contract.Emit: Call.emit,
    contract.SaveApproval: Call.save,
    contract.TakeLease: Call.as_they_are,
    contract.RenewLease: Call.as_they_are,
    contract.DropLease: Call.as_they_are,
    contract.Fence: Call.as_they_are,
}


def outcomes(ops: Sequence[Op], answer: str) -> list[Outcome]:
    return [outcome(op, fields) for op, fields in zip(ops, msgspec.json.decode(answer), strict=True)]


def outcome(op: Op, fields: list[Any] | None) -> Outcome:
    if fields is None:
        return None
    if isinstance(op, (contract.TakeLease, contract.RenewLease)):
        owner, token, expires_at = fields
        return Lease(op.name, owner, token, float(expires_at))
    return Head(*fields)


_REFUSALS: dict[str, Callable[..., HoldfastError]] = {
    "HF001": lambda session_id, expected, version, length: HistoryMoved(
        session_id, expected=expected, found=Head(version, length)
    ),
    "HF002": lambda name, expected, found: RunMoved(name, expected=expected, found=found),
    "HF003": lambda name, expected, found: ApprovalMoved(name, expected=expected, found=found),
    "HF004": lambda name, expected, found: FenceLost(name, expected=expected, found=found),
    "HF005": lambda session_id, key: KeyReused(session_id, key),
    "HF006": lambda what, name: NotFound(what, name),
    "HF007": lambda name, owner, expires_at: LeaseHeld(name, owner=owner, expires_at=float(expires_at)),
    "HF008": contract.sealed_against,
}


def refusal(sqlstate: str | None, detail: str | None) -> HoldfastError | None:
    """The exception that the function meant, if the error is one of its own."""
    if sqlstate not in _REFUSALS or detail is None:
        return None
    return _REFUSALS[sqlstate](**msgspec.json.decode(detail))


def query(terms: Sequence[str]) -> str:
    """A tsquery for items that have, for every term, a word beginning with it."""
    quoted = (term.replace("\\", "\\\\").replace("'", "''") for term in terms)
    return " & ".join(f"'{term}':*" for term in quoted)


def find(
    db: Connection, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
) -> list[Found]:
    where, params = "", {"match": query(terms), "limit": limit, "skip": skip}
    if session_id is not None:
        where, params["session_id"] = f"{where} AND v.session_id = :session_id", session_id
    if owner is not None:
        where, params["owner"] = f"{where} AND v.owner = :owner", owner
    found = db.all(
        "SELECT v.session_id, i.tape, i.seq, i.data FROM {items} i"
        " JOIN (SELECT tape, session_id, erased_upto AS since, next_seq AS upto, updated_at, owner, 0 AS borrowed"
        "       FROM {sessions} UNION ALL"
        "       SELECT l.tape, l.session_id, 0, l.upto, s.updated_at, s.owner, 1 FROM {_links} l"
        "       JOIN {sessions} s ON s.session_id = l.session_id)"
        " v ON v.tape = i.tape AND i.seq >= v.since AND i.seq < v.upto"
        f" WHERE i.words @@ CAST(:match AS tsquery){where}"
        " ORDER BY v.updated_at DESC, v.session_id, v.borrowed, i.seq DESC, i.tape LIMIT :limit OFFSET :skip",
        params,
    )
    return [Found(session, tape, seq, as_bytes(data) or b"") for session, tape, seq, data in found]
