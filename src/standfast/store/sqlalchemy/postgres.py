"""PostgreSQL only: a commit as one call of a function, and full-text search in an index that is updated on writing.

The function is defined in ``postgres_commit.sql``; this module encodes its arguments and decodes its results.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from standfast.base.errors import (
    ApprovalMoved,
    BlobsMissing,
    DocumentMoved,
    FenceLost,
    HistoryMoved,
    JournalMoved,
    KeyReused,
    NotFound,
    OutsideScope,
    RunMoved,
    RunShared,
    StandfastError,
    WorkspaceMoved,
)
from standfast.store import operations, preconditions
from standfast.store.operations import LeaseHeld, Op, OpResult, make_encrypted_run_error, make_wrong_key_error
from standfast.store.records import FreedBlobs, Head, Lease, SearchCandidate
from standfast.store.sql.connection import DatabaseConnection, as_bytes
from standfast.store.sql.history_writes import encode_closed_spans, encode_held_ranges

COMMIT_QUERY = (
    "SELECT CAST({_commit}(CAST(:ops AS jsonb), CAST(:blobs AS bytea[]), CAST(:now AS double precision)) AS text)"
)
WORDS_EXPRESSION = "array_to_tsvector(array_remove(string_to_array(nullif(CAST(:words AS text), ''), ' '), ''))"

Fields = dict[str, Any]


class CommitPayload:
    """The arguments of the commit function. Binary data is passed in an array beside the JSON."""

    def __init__(self, ops: Iterable[Op]) -> None:
        self.blobs: list[bytes] = []
        fields = [{"op": type(op).__struct_config__.tag, **_ENCODERS[type(op)](self, op)} for op in ops]
        # The function reads a missing field as NULL.
        present = [{name: value for name, value in op.items() if value is not None} for op in fields]
        self.ops = msgspec.json.encode(present).decode()

    def add_blobs(self, *blobs: bytes) -> int:
        """Add blobs and return the index of the first one. SQL arrays start at 1."""
        self.blobs.extend(blobs)
        return len(self.blobs) - len(blobs) + 1

    def encode_splice(self, op: operations.Splice) -> Fields:
        preconditions.check_view_update(op)
        return {
            "session_id": op.session_id,
            "added": len(op.add),
            "blob": self.add_blobs(*op.add),
            "words": op.words or None,
            "expected": op.expected,
            "key": op.key and op.key.name,
            "digest": op.key and op.key.digest,
            "seal": None if op.seal is None else self.add_blobs(op.seal),
            "tape": op.tape,
            "links": [(tape, upto, encode_held_ranges(op.view_update, tape)) for tape, upto in op.links] or None,
            "owner": op.owner,
            **(self.encode_view_update(op.view_update) if op.view_update else {}),
        }

    def encode_view_update(self, view_update: operations.ViewUpdate) -> Fields:
        return {
            "closed": encode_closed_spans(view_update),
            "open_from": view_update.open_from,
            "length": view_update.length,
            "archive": view_update.archive,
        }

    def encode_erase(self, op: operations.Erase) -> Fields:
        return {
            "session_id": op.session_id,
            "expected": op.expected,
            "forget": op.forget,
            "seal": None if op.seal is None else self.add_blobs(op.seal),
        }

    def encode_annotate(self, op: operations.Annotate) -> Fields:
        # As text, so that jsonb does not change its numbers and escapes.
        metadata = msgspec.json.encode(op.metadata).decode()
        fields = {"session_id": op.session_id, "metadata": metadata, "owner": op.owner, "tape": op.tape}
        return fields | {"claim": op.claim}

    def encode_versions(self, op: operations.AppendVersions | operations.RewriteVersions) -> Fields:
        return {**self.encode_fields(op), "versions": len(op.versions), "blob": self.add_blobs(*op.versions)}

    def encode_save_checkpoint(self, op: operations.SaveCheckpoint) -> Fields:
        # As text, which is stored as it is; the function parses it.
        return {**self.encode_save(op), "blobs": msgspec.json.encode(op.blobs).decode()}

    def encode_save(
        self,
        op: operations.SaveRun
        | operations.SaveApproval
        | operations.SaveCheckpoint
        | operations.PutBlob
        | operations.PutDocument,
    ) -> Fields:
        return {**self.encode_fields(op), "data": None, "blob": self.add_blobs(op.data)}

    def encode_append_journal(self, op: operations.AppendJournal) -> Fields:
        seals = {
            name: None if seal is None else self.add_blobs(seal)
            for name, seal in (("seal", op.seal), ("previous_seal", op.previous_seal))
        }
        return {**self.encode_log_entries(op.run_id, op.entries), "expected": op.expected, **seals}

    def encode_rewrite_run(self, op: operations.RewriteRun) -> Fields:
        return {
            "run_id": op.run_id,
            "blob": self.add_blobs(op.data, op.previous_seal, op.seal),
            "journal": len(op.journal),
            "events": len(op.events),
            "entries": self.add_blobs(*op.journal, *op.events),
        }

    def encode_append_events(self, op: operations.AppendEvents) -> Fields:
        return self.encode_log_entries(op.run_id, op.events)

    def encode_log_entries(self, run_id: str, entries: tuple[tuple[str, bytes], ...]) -> Fields:
        return {
            "run_id": run_id,
            "kinds": [kind for kind, _ in entries],
            "blob": self.add_blobs(*(data for _, data in entries)),
        }

    def encode_fields(self, op: Op) -> Fields:
        return {name: getattr(op, name) for name in op.__struct_fields__}


_ENCODERS: dict[type, Callable[[CommitPayload, Any], Fields]] = {
    operations.Splice: CommitPayload.encode_splice,
    operations.Erase: CommitPayload.encode_erase,
    operations.Annotate: CommitPayload.encode_annotate,
    operations.RequireVersion: CommitPayload.encode_fields,
    operations.Quarantine: CommitPayload.encode_fields,
    operations.SaveRun: CommitPayload.encode_save,
    operations.MoveBehind: CommitPayload.encode_fields,
    operations.DeleteRun: CommitPayload.encode_fields,
    operations.AppendJournal: CommitPayload.encode_append_journal,
    operations.AppendEvents: CommitPayload.encode_append_events,
    operations.RewriteRun: CommitPayload.encode_rewrite_run,
    operations.SaveApproval: CommitPayload.encode_save,
    operations.AppendVersions: CommitPayload.encode_versions,
    operations.RewriteVersions: CommitPayload.encode_versions,
    operations.SaveCheckpoint: CommitPayload.encode_save_checkpoint,
    operations.DropCheckpoint: CommitPayload.encode_fields,
    operations.DeleteWorkspace: CommitPayload.encode_fields,
    operations.PutBlob: CommitPayload.encode_save,
    operations.SweepBlobs: CommitPayload.encode_fields,
    operations.PutDocument: CommitPayload.encode_save,
    operations.DeleteDocument: CommitPayload.encode_fields,
    operations.AcquireLease: CommitPayload.encode_fields,
    operations.RenewLease: CommitPayload.encode_fields,
    operations.ReleaseLease: CommitPayload.encode_fields,
    operations.CheckFence: CommitPayload.encode_fields,
}


def parse_results(ops: Sequence[Op], answer: str) -> list[OpResult]:
    return [parse_result(op, fields) for op, fields in zip(ops, msgspec.json.decode(answer), strict=True)]


def parse_result(op: Op, fields: list[Any] | None) -> OpResult:
    if fields is None:
        return None
    if isinstance(op, (operations.AcquireLease, operations.RenewLease)):
        owner, token, expires_at = fields
        return Lease(op.name, owner, token, float(expires_at))
    if isinstance(op, (operations.DropCheckpoint, operations.DeleteWorkspace, operations.SweepBlobs)):
        return FreedBlobs(fields[0], tuple(fields[1]))
    return Head(*fields)


# HF is from holdfast, the name of the product before version 0.1.0 was released.
_ERRORS_BY_SQLSTATE: dict[str, Callable[..., StandfastError]] = {
    "HF001": lambda session_id, expected, version, length: HistoryMoved(
        session_id, expected=expected, found=Head(version, length)
    ),
    "HF002": lambda name, expected, found: RunMoved(name, expected=expected, found=found),
    "HF003": lambda name, expected, found: ApprovalMoved(name, expected=expected, found=found),
    "HF004": lambda name, expected, found: FenceLost(name, expected=expected, found=found),
    "HF005": lambda session_id, key: KeyReused(session_id, key),
    "HF006": lambda what, name: NotFound(what, name),
    "HF007": lambda name, owner, expires_at: LeaseHeld(name, owner=owner, expires_at=float(expires_at)),
    "HF008": make_wrong_key_error,
    "HF009": lambda name, fork: RunShared(name, fork_id=fork),
    "HF010": lambda name, expected, found: WorkspaceMoved(name, expected=expected, found=found),
    "HF011": lambda digests: BlobsMissing(digests),
    "HF012": lambda name, expected, found: JournalMoved(name, expected=expected, found=found),
    "HF013": make_encrypted_run_error,
    "HF014": lambda kind, key, expected, found: DocumentMoved(kind, key, expected=expected, found=found),
    "HF015": lambda owner: OutsideScope(owner),
}


def error_from_sqlstate(sqlstate: str | None, detail: str | None) -> StandfastError | None:
    """Return the exception for an error that the function raised, ``None`` for any other error."""
    if sqlstate not in _ERRORS_BY_SQLSTATE or detail is None:
        return None
    return _ERRORS_BY_SQLSTATE[sqlstate](**msgspec.json.decode(detail))


def build_tsquery(terms: Sequence[str]) -> str:
    """Build a tsquery for items that contain, for every term, a word that starts with it."""
    quoted = (term.replace("\\", "\\\\").replace("'", "''") for term in terms)
    return " & ".join(f"'{term}':*" for term in quoted)


def find(
    db: DatabaseConnection, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
) -> list[SearchCandidate]:
    where, params = "", {"match": build_tsquery(terms), "limit": limit, "skip": skip}
    if session_id is not None:
        where, params["session_id"] = f"{where} AND v.session_id = :session_id", session_id
    if owner is not None:
        where, params["owner"] = f"{where} AND v.owner = :owner", owner
    found = db.fetch_all(
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
    return [SearchCandidate(session, tape, seq, as_bytes(data) or b"") for session, tape, seq, data in found]
