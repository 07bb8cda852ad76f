"""Histories and leases in Redis, one server-side script per commit."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from holdfast.base.clock import Clock
from holdfast.base.errors import InvalidInput, NotFound, StoreUnavailable, Unsupported
from holdfast.store.contract import (
    ApprovalRecord,
    Cursor,
    Generation,
    Lease,
    LogEntry,
    Op,
    OpResult,
    Page,
    QuarantinedItem,
    RunRecord,
    SearchCandidate,
    SessionRecord,
)
from holdfast.store.redis import wire
from holdfast.store.redis.commits import RedisCommitter
from holdfast.store.redis.keyspace import HINTS_SCRIPT, Keyspace, validate_prefix
from holdfast.store.redis.server import Client, RedisConnection, Script, open_client
from holdfast.store.redis.wire import TapeSegment, make_tag

MAX_TTL = 10**12
_PAGE_SIZE = 100
_MAX_CONCURRENT_READS = 8
_STALE_NAME_SECONDS = 3600
"""Seconds after which a listed name without a record is no longer that of a session about to be created."""

_RUNS_UNSUPPORTED = "Redis stores keep histories and leases, not runs"

_READ_SCRIPT, _LIST_SCRIPT = Script("read.lua"), Script("list.lua")


class RedisBackend:
    """A store in Redis 6.2 or newer, or in a Redis cluster.

    With ``ttl``, all keys of a session expire together, so many seconds after its last write; what a fork shows of
    its ancestors lives as long as the fork. Use one ``ttl`` for one ``prefix``. Times are the server's, unless a
    clock is handed in. A client that is handed in stays the caller's, unless ``owns_client``.

    In a cluster a batch must stay with one session, and with leases of the session's name. Forks are the exception.
    """

    indexes_words = False

    def __init__(
        self,
        client: Client,
        *,
        prefix: str = "holdfast",
        ttl: float | None = None,
        owns_client: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.owns_client = owns_client
        self.connection = RedisConnection(client)
        self.keys = Keyspace(self.connection, prefix)
        self.committer = RedisCommitter(self.keys, ttl=validate_ttl(ttl), clock=clock)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        prefix: str = "holdfast",
        ttl: float | None = None,
        clock: Clock | None = None,
        redis_kwargs: dict[str, Any] | None = None,
    ) -> Self:
        """A store with a client of its own. ``redis+cluster://`` and ``rediss+cluster://`` name a cluster's node."""
        validate_prefix(prefix)
        validate_ttl(ttl)
        client, where = open_client(url, **(redis_kwargs or {}))
        backend = cls(client, prefix=prefix, ttl=ttl, owns_client=True, clock=clock)
        backend.connection.location = where
        return backend

    async def close(self) -> None:
        await self.connection.close()
        if self.owns_client:
            await self.connection.client.aclose()

    async def ping(self) -> bool:
        """Whether the server answers."""
        try:
            await self.keys.is_clustered()
            await self.connection.execute("EXISTS", self.keys.sessions_key.encode(), key=self.keys.sessions_key)
        except StoreUnavailable:
            return False
        return True

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[OpResult]:
        """See the contract. A lost answer is :class:`StoreUnavailable`, and nobody knows whether it was written.

        A batch that may be sent twice, such as keyed splices, is sent twice before that happens.
        """
        return await self.committer.commit(ops)

    # --- reading --------------------------------------------------------------------------------

    async def get_session(self, session_id: str) -> SessionRecord | None:
        fields = await self.keys.read_session_fields(session_id)
        return wire.parse_session_record(session_id, fields) if fields else None

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> Page | None:
        tag = make_tag(session_id)
        limits = [b"" if value is None else wire.encode_number(value) for value in (generation, start, stop, last)]
        args = [self.keys.prefix.encode(), tag.encode(), wire.encode_flag(await self.keys.is_clustered()), *limits]
        while True:
            reply = await self.connection.run_script(_READ_SCRIPT, [self.keys.make_key(tag)], args, retry=True)
            if reply is None:
                return None
            if len(reply) == 1:
                raise NotFound("generation", generation)
            record = wire.parse_session_record(session_id, wire.parse_hash(reply[0]))
            pieces = [TapeSegment.parse(piece) for piece in reply[2]]
            whole = [await self.fetch_segment(piece) for piece in pieces]
            page = Page(record, wire.build_rows(int(reply[1]), whole))
            if pieces == whole or all(row.data is not None for row in page.rows) or await self.is_unchanged(record):
                return page
            # Erased between the two: what was read is a mixture of before and after.

    async def fetch_segment(self, segment: TapeSegment) -> TapeSegment:
        """The piece with its items, also those that lie in another slot."""
        if segment.data is not None or not segment.origin:
            return segment
        key = f"{self.keys.make_key(segment.origin)}:tape:{segment.span.tape}"
        places = [wire.encode_number(seq) for seq in range(segment.span.start, segment.span.stop)]
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
            cursor = [wire.encode_number(after.updated_at), wire.encode_text(after.session_id)] if after else [b"", b""]
            args = [self.keys.prefix.encode(), wire.encode_number(_PAGE_SIZE), *cursor]
            page = await self.connection.run_script(_LIST_SCRIPT, [self.keys.sessions_key], args, retry=True)
            for name, fields in page:
                record = parse_record_or_none(wire.decode_text(name), wire.parse_hash(fields))
                if record is not None and record.matches(owner=owner, query=query):
                    found.append(record)
            if len(page) < _PAGE_SIZE:
                break
            after = Cursor(float(wire.parse_hash(page[-1][1])[b"updated_at"]), wire.decode_text(page[-1][0]))
        return found[:limit]

    async def list_cluster_sessions(self) -> list[SessionRecord]:
        """Every session of a cluster, newest first. Names of sessions long gone are taken off the list."""
        now, names = await self.keys.list_session_names()
        found: list[SessionRecord] = []
        gone: list[bytes] = []
        for first in range(0, len(names), _MAX_CONCURRENT_READS):
            some = names[first : first + _MAX_CONCURRENT_READS]
            stored = await asyncio.gather(*(self.keys.read_session_fields(wire.decode_text(name)) for name, _ in some))
            for (name, score), fields in zip(some, stored, strict=True):
                record = parse_record_or_none(wire.decode_text(name), fields)
                if record is not None:
                    found.append(record)
                elif not fields and now - float(score) > _STALE_NAME_SECONDS:
                    gone += [name, score]
        if gone:
            await self.connection.run_script(HINTS_SCRIPT, [self.keys.sessions_key], [b"drop", *gone], retry=True)
        return sorted(found, key=lambda record: (record.updated_at, record.session_id), reverse=True)

    async def list_generations(self, session_id: str) -> list[Generation]:
        entries = await self.keys.read_hash(self.keys.make_key(make_tag(session_id)) + ":generations")
        return sorted((wire.parse_generation(*entry) for entry in entries.items()), key=lambda entry: entry.number)

    async def list_quarantined(self, session_id: str) -> list[QuarantinedItem]:
        entries = await self.keys.read_hash(self.keys.make_key(make_tag(session_id)) + ":quarantine")
        return sorted(
            (wire.parse_quarantined(*entry) for entry in entries.items()), key=lambda one: (one.tape, one.seq)
        )

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[SearchCandidate] | None:
        return None

    async def get_lease(self, name: str) -> Lease | None:
        held = await self.keys.read_hash(self.keys.make_key(make_tag(name)) + ":lease")
        if not held.get(b"owner"):
            return None
        return Lease(name, wire.decode_text(held[b"owner"]), int(held[b"token"]), float(held[b"expires_at"]))

    # --- what is not kept here ------------------------------------------------------------------

    async def get_run(self, run_id: str) -> RunRecord | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_runs(
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def read_journal(self, run_id: str, *, after: int) -> list[LogEntry]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def read_events(self, run_id: str, *, after: int, limit: int) -> list[LogEntry]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_approval(self, approval_id: str) -> ApprovalRecord | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_due_approvals(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def get_time(self) -> float:
        raise Unsupported(_RUNS_UNSUPPORTED)


def parse_record_or_none(session_id: str, fields: dict[bytes, bytes]) -> SessionRecord | None:
    """The record, or ``None`` if it is gone or damaged: that must not hide the other sessions of a list."""
    try:
        return wire.parse_session_record(session_id, fields) if fields else None
    except StoreUnavailable:
        return None


def validate_ttl(ttl: object) -> float | None:
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= MAX_TTL:
        raise InvalidInput(f"ttl must be a number of seconds above 0 and up to {MAX_TTL}, not {ttl!r}")
    return ttl
