"""The Redis backend: commits as one server-side script each, and reads."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from standfast.base.errors import InvalidInput, NotFound, SessionDamaged, StoreUnavailable, Unsupported
from standfast.base.time import Clock
from standfast.base.validation import is_number
from standfast.store.backend import Cursor
from standfast.store.links import Link, LinkListener, LinkUnavailable
from standfast.store.operations import Op, OpResult
from standfast.store.records import (
    ApprovalRecord,
    BlobRecord,
    ChangedApproval,
    CheckpointRecord,
    DocumentRecord,
    Generation,
    HistoryPage,
    Lease,
    LogEntry,
    QuarantinedItem,
    QueueDepth,
    RunRecord,
    SearchCandidate,
    SessionRecord,
    SessionTurn,
    VersionRecord,
    WorkspaceRecord,
)
from standfast.store.redis import encoding
from standfast.store.redis.committer import RedisCommitter
from standfast.store.redis.connection import CLOSE_TIMEOUT, LuaScript, RedisClient, RedisConnection, open_client
from standfast.store.redis.encoding import TapeSegment, make_tag
from standfast.store.redis.keys import DEFAULT_PREFIX, HINTS_SCRIPT, Keyspace, validate_prefix
from standfast.store.shielded_work import ShieldedWork

MAX_TTL = 10**12
_PAGE_SIZE = 100
_MAX_CONCURRENT_READS = 8
_STALE_NAME_SECONDS = 3600
"""Seconds after which a name without a record is removed from the list. A younger one may belong to a session that is
being created."""

_RUNS_UNSUPPORTED = "Redis stores support histories and leases, not runs"
_DOCUMENTS_UNSUPPORTED = "Redis stores support histories and leases, not documents"

_READ_SCRIPT, _LIST_SCRIPT = LuaScript("read.lua"), LuaScript("list.lua")


class RedisBackend:
    """A store in Redis 6.2 or newer, or in a Redis cluster.

    With ``ttl``, all keys of a session expire together, ``ttl`` seconds after its last write; items of its ancestors in
    the view of a fork expire with the fork. Use one ``ttl`` per ``prefix``. Times are those of the server unless a
    ``clock`` is given. The client belongs to the caller unless ``owns_client``.

    In a cluster, a commit must concern one session and leases of the same name. Only forks may cross slots.
    """

    indexes_words = False

    def __init__(
        self,
        client: RedisClient,
        *,
        prefix: str = DEFAULT_PREFIX,
        ttl: float | None = None,
        owns_client: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.owns_client = owns_client
        self.connection = RedisConnection(client)
        self.keys = Keyspace(self.connection, prefix)
        self.location = f"{self.connection.location} {prefix}"
        self.committer = RedisCommitter(self.keys, ttl=validate_ttl(ttl), clock=clock)
        self.writes = ShieldedWork()

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        ttl: float | None = None,
        clock: Clock | None = None,
        redis_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """Create a backend with its own client. A URL with ``redis+cluster://`` names a node of a cluster."""
        validate_prefix(prefix)
        validate_ttl(ttl)
        client, location = open_client(url, **(redis_kwargs or {}))
        backend = cls(client, prefix=prefix, ttl=ttl, owns_client=True, clock=clock)
        backend.connection.location = location
        return backend

    async def close(self) -> None:
        await self.connection.close()
        await self.writes.finish(timeout=CLOSE_TIMEOUT)
        if self.owns_client:
            await self.connection.client.aclose()

    async def ping(self) -> bool:
        """Return whether the server responds."""
        try:
            await self.keys.is_clustered()
            await self.connection.execute("EXISTS", self.keys.sessions_key.encode(), key=self.keys.sessions_key)
        except StoreUnavailable:
            return False
        return True

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[OpResult]:
        """Apply all operations or none, see :meth:`~standfast.store.backend.Backend.commit`.

        If the connection is lost before the response, a commit that can be repeated, such as keyed splices, is sent
        again. Otherwise it raises :class:`StoreUnavailable`, and it is unknown whether it was applied. If the caller is
        cancelled, the commit continues, and later ones wait for it.
        """
        await self.writes.wait_for_abandoned()
        return await self.writes.run_shielded(self.committer.commit(ops))

    # --- reading --------------------------------------------------------------------------------

    async def get_session(self, session_id: str) -> SessionRecord | None:
        fields = await self.keys.read_session_fields(session_id)
        return encoding.parse_session_record(session_id, fields) if fields else None

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> HistoryPage | None:
        tag, spread = make_tag(session_id), await self.keys.is_clustered()
        limits = [b"" if value is None else encoding.encode_number(value) for value in (generation, start, stop, last)]
        args = [self.keys.prefix.encode(), tag.encode(), encoding.encode_flag(spread), *limits]
        while True:
            reply = await self.connection.run_script(_READ_SCRIPT, [self.keys.make_key(tag)], args, retry=True)
            if reply is None:
                return None
            if len(reply) == 1:
                raise NotFound("generation", generation)
            record = encoding.parse_session_record(session_id, encoding.parse_hash(reply[0]))
            segments = [TapeSegment.parse(segment) for segment in reply[2]]
            fetched = [await self.fetch_segment(segment) for segment in segments]
            page = HistoryPage(record, encoding.build_rows(int(reply[1]), fetched), bool(reply[3]))
            if segments == fetched or all(row.data is not None for row in page.rows) or await self.is_unchanged(record):
                return page
            # Items were erased between the two reads: the page mixes both states, so read again.

    async def fetch_segment(self, segment: TapeSegment) -> TapeSegment:
        """Return the segment with its items, reading those in another slot."""
        if segment.data is not None or not segment.origin:
            return segment
        key = f"{self.keys.make_key(segment.origin)}:tape:{segment.span.tape}"
        places = [encoding.encode_number(seq) for seq in range(segment.span.start, segment.span.stop)]
        data = await self.connection.execute("HMGET", key.encode(), *places, key=key)
        return TapeSegment(segment.span, segment.origin, data)

    async def is_unchanged(self, record: SessionRecord) -> bool:
        again = await self.get_session(record.session_id)
        return again is not None and (again.tape, again.version) == (record.tape, record.version)

    async def list_sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        found: list[SessionRecord] = []
        if await self.keys.is_clustered():
            found = await self.list_cluster_sessions()
            if after is not None:
                last = (after.updated_at, after.session_id)
                found = [record for record in found if (record.updated_at, record.session_id) < last]
            return [record for record in found if record.matches(owner=owner, query=query)][:limit]
        while len(found) < limit:
            cursor = (
                [encoding.encode_number(after.updated_at), encoding.encode_text(after.session_id)]
                if after
                else [b"", b""]
            )
            args = [self.keys.prefix.encode(), encoding.encode_number(_PAGE_SIZE), *cursor]
            page = await self.connection.run_script(_LIST_SCRIPT, [self.keys.sessions_key], args, retry=True)
            for name, fields, _ in page:
                record = parse_record_or_none(encoding.decode_text(name), encoding.parse_hash(fields))
                if record is not None and record.matches(owner=owner, query=query):
                    found.append(record)
            if len(page) < _PAGE_SIZE:
                break
            after = Cursor(float(page[-1][2]), encoding.decode_text(page[-1][0]))
        return found[:limit]

    async def list_cluster_sessions(self) -> list[SessionRecord]:
        """List every session of a cluster, newest first. Removes names of former sessions from the list."""
        now, names = await self.keys.list_session_names()
        found: list[SessionRecord] = []
        stale: list[bytes] = []
        for first in range(0, len(names), _MAX_CONCURRENT_READS):
            batch = names[first : first + _MAX_CONCURRENT_READS]
            stored = await asyncio.gather(
                *(self.keys.read_session_fields(encoding.decode_text(name)) for name, _ in batch)
            )
            for (name, score), fields in zip(batch, stored, strict=True):
                record = parse_record_or_none(encoding.decode_text(name), fields)
                if record is not None:
                    found.append(record)
                elif not fields and now - float(score) > _STALE_NAME_SECONDS:
                    stale += [name, score]
        if stale:
            await self.connection.run_script(HINTS_SCRIPT, [self.keys.sessions_key], [b"drop", *stale], retry=True)
        return sorted(found, key=lambda record: (record.updated_at, record.session_id), reverse=True)

    async def list_generations(self, session_id: str) -> list[Generation]:
        entries = await self.keys.read_hash(session_id, ":generations")
        return sorted((encoding.parse_generation(*entry) for entry in entries.items()), key=lambda entry: entry.number)

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]:
        entries = await self.keys.read_hash(session_id, ":quarantine")
        return sorted(
            (encoding.parse_quarantined(*entry) for entry in entries.items()), key=lambda one: (one.tape, one.seq)
        )

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        return None

    async def get_lease(self, name: str) -> Lease | None:
        fields = await self.keys.read_hash(name, ":lease")
        if not fields.get(b"owner"):
            return None
        return Lease(name, encoding.decode_text(fields[b"owner"]), int(fields[b"token"]), float(fields[b"expires_at"]))

    # --- not supported --------------------------------------------------------------------------

    async def open_link(self, name: str, listener: LinkListener) -> Link:
        raise LinkUnavailable(_RUNS_UNSUPPORTED)

    async def get_run(self, run_id: str) -> RunRecord | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_runs(self, **filters: Any) -> list[RunRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_session_turn(self, session_id: str, *, lease: str) -> SessionTurn:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_claimable(self, **filters: Any) -> list[RunRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_waiting_queues(self) -> list[str]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_queue_depths(self) -> list[QueueDepth]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_approvals(self, **filters: Any) -> list[ApprovalRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_changed_approvals(self, **filters: Any) -> list[ChangedApproval]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def count_approval_changes(self) -> int:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_time(self) -> float:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_workspace(self, key: str) -> WorkspaceRecord | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_workspaces(self, *, limit: int, after: str) -> list[WorkspaceRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def read_versions(self, key: str, *, after: int = 0, upto: int | None = None) -> list[VersionRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_checkpoint(self, key: str, version: int) -> CheckpointRecord | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def find_blobs(self, digests: Sequence[str]) -> list[BlobRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def read_blob(self, blob: BlobRecord) -> bytes | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_document(self, kind: str, key: str) -> DocumentRecord | None:
        raise Unsupported(_DOCUMENTS_UNSUPPORTED)

    async def list_documents(self, kind: str, **options: Any) -> list[DocumentRecord]:
        raise Unsupported(_DOCUMENTS_UNSUPPORTED)


def parse_record_or_none(session_id: str, fields: dict[bytes, bytes]) -> SessionRecord | None:
    """Return the record, or ``None`` if it is missing or damaged, so that a listing can skip it."""
    try:
        return encoding.parse_session_record(session_id, fields) if fields else None
    except SessionDamaged:
        return None


def validate_ttl(ttl: object) -> float | None:
    if ttl is None:
        return None
    if not is_number(ttl) or not 0 < ttl <= MAX_TTL:
        raise InvalidInput(f"ttl must be a number of seconds above 0 and up to {MAX_TTL}, not {ttl!r}")
    return ttl
