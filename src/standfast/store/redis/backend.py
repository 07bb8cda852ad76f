"""The Redis backend: commits as one server-side script each, and reads."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from standfast.base.errors import InvalidInput, NotFound, StandfastError, StoreUnavailable, Unsupported
from standfast.base.time import Clock
from standfast.store.backend import Cursor
from standfast.store.operations import Annotate, Op, OpResult, RequireVersion, Splice, check_view_update
from standfast.store.records import (
    ApprovalRecord,
    BlobRecord,
    CheckpointRecord,
    Generation,
    Lease,
    LogEntry,
    Page,
    QuarantinedItem,
    RunRecord,
    SearchCandidate,
    SessionRecord,
    VersionRecord,
    WorkspaceRecord,
)
from standfast.store.redis import encoding
from standfast.store.redis.connection import Client, RedisConnection, Script, open_client
from standfast.store.redis.encoding import CommitStep, ForkLink, ForkLinkChange, TapeSegment, make_tag
from standfast.store.redis.keys import DEFAULT_PREFIX, HINTS_SCRIPT, Keyspace, validate_prefix

_COMMIT_SCRIPT = Script("commit.lua")


class RedisCommitter:
    """Runs the commits of a store; in a cluster, including those that span several slots."""

    def __init__(self, keys: Keyspace, *, ttl: float | None, clock: Clock | None) -> None:
        self.keys, self.connection = keys, keys.connection
        self.ttl, self.clock = ttl, clock

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        spread = await self.keys.is_clustered()
        for op in ops:
            if type(op) not in encoding.ENCODERS:
                raise Unsupported(f"Redis stores support histories and leases, not {type(op).__name__}")
            if isinstance(op, Splice):
                check_view_update(op)
        if not ops:
            return []
        origins = await self.find_tape_origins(ops)
        if spread and len({*map(encoding.get_step_tag, ops), *origins.values()}) > 1:
            return await self.commit_across_slots(ops, origins)
        return await self.run_steps(ops, origins)

    async def run_steps(
        self, steps: Sequence[CommitStep], origins: encoding.TapeOrigins, *, listed: bool = False
    ) -> list[OpResult]:
        """Run one batch in its slot, and in a cluster the link changes in other slots that result from it."""
        spread = await self.keys.is_clustered()
        own_keys = dict.fromkeys(self.keys.make_key(encoding.get_step_tag(step)) for step in steps)
        keys = [*own_keys] if spread else [*own_keys, self.keys.sessions_key]
        args = [
            self.keys.prefix.encode(),
            b"" if self.clock is None else encoding.encode_number(self.clock()),
            b"" if self.ttl is None else encoding.encode_number(math.ceil(self.ttl * 1000)),
            encoding.encode_flag(spread),
            encoding.encode_flag(listed),
        ]
        for step in steps:
            args += encoding.ENCODERS[type(step)](step, origins)
        status, *details = await self.connection.run_script(
            _COMMIT_SCRIPT, keys, args, retry=encoding.is_repeatable(steps)
        )
        if status == b"unlisted":
            await self.add_to_session_list(steps)
            return await self.run_steps(steps, origins, listed=True)
        if status == b"refused":
            raise encoding.error_from_refusal(steps[int(details[0])], details[1], details[2:])
        results, unlinking, prolonging = details
        if unlinking:
            await self.change_links("unlink", map(ForkLink.parse, unlinking))
            pending = next(iter(own_keys)) + ":unlinking"
            await self.connection.execute("SREM", pending.encode(), *unlinking, key=pending)
        await self.change_links("prolong", map(ForkLink.parse, prolonging))
        return [encoding.parse_result(step, reply) for step, reply in zip(steps, results, strict=True)]

    async def add_to_session_list(self, steps: Sequence[CommitStep]) -> None:
        """Add a session that is about to be created to the list. Listings only read sessions on the list."""
        session_id = next(step.session_id for step in steps if isinstance(step, (Splice, Annotate)))
        await self.connection.run_script(
            HINTS_SCRIPT, [self.keys.sessions_key], [b"add", encoding.encode_text(session_id)], retry=True
        )

    async def change_links(self, action: str, links: Iterable[ForkLink]) -> None:
        for link in links:
            await self.run_steps([ForkLinkChange(action, link)], {})

    async def commit_across_slots(self, ops: Sequence[Op], origins: encoding.TapeOrigins) -> list[OpResult]:
        """Create a fork of sessions in other slots of a cluster.

        First the fork is linked to their tapes, to that of the parent together with the check of its version; then the
        fork is created. Stored items never change, so the linked items cannot be destroyed from the first step on. A
        crash in between leaves an unused link.
        """
        own_tags = {encoding.get_step_tag(op) for op in ops if not isinstance(op, RequireVersion)}
        remote = [op for op in ops if encoding.get_step_tag(op) not in own_tags]
        if len(own_tags) != 1 or (remote and not any(isinstance(op, Splice) and op.expected == 0 for op in ops)):
            raise Unsupported("in a Redis cluster, a commit must concern one session only, or create a fork")
        link_changes = [
            ForkLinkChange("link", ForkLink(tape, op.tape, origins[tape]), encoding.encode_held_ranges(op, tape))
            for op in ops
            if isinstance(op, Splice)
            for tape, _ in op.links
            if tape in origins and origins[tape] not in own_tags
        ]
        parents = {encoding.get_step_tag(op) for op in remote}
        # The parent last: while it is at this version, its own links keep what it shows of its ancestors.
        steps: list[list[CommitStep]] = [[change] for change in link_changes if change.link.origin not in parents]
        steps += [
            [op, *(change for change in link_changes if change.link.origin == encoding.get_step_tag(op))]
            for op in remote
        ]
        try:
            for step in steps:
                await self.run_steps(step, origins)
            rest = iter(await self.run_steps([op for op in ops if op not in remote], origins))
        except StoreUnavailable:
            raise
        except StandfastError:
            await self.change_links("unlink", [change.link for change in link_changes])
            raise
        return [None if op in remote else next(rest) for op in ops]

    async def find_tape_origins(self, ops: Sequence[Op]) -> dict[int, str]:
        """Return the hash tags of the tapes that forks in this batch link to.

        They are in the record of the parent, which a fork's batch names. Otherwise all sessions are searched.
        """
        tapes = {tape for op in ops if isinstance(op, Splice) for tape, _ in op.links}
        origins: dict[int, str] = {}
        if not tapes:
            return origins
        for session_id in dict.fromkeys(op.session_id for op in ops if isinstance(op, RequireVersion)):
            origins |= encoding.parse_origins(make_tag(session_id), await self.keys.read_session_fields(session_id))
        if tapes <= origins.keys():
            return origins
        for name, _ in (await self.keys.list_session_names())[1]:
            origins |= encoding.parse_origins(
                make_tag(encoding.decode_text(name)), await self.keys.read_session_fields(encoding.decode_text(name))
            )
            if tapes <= origins.keys():
                break
        return origins


MAX_TTL = 10**12
_PAGE_SIZE = 100
_MAX_CONCURRENT_READS = 8
_STALE_NAME_SECONDS = 3600
"""Seconds after which a name without a record is removed from the list. A younger one may belong to a session that is
being created."""

_RUNS_UNSUPPORTED = "Redis stores support histories and leases, not runs"

_READ_SCRIPT, _LIST_SCRIPT = Script("read.lua"), Script("list.lua")


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
        client: Client,
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
        again. Otherwise it raises :class:`StoreUnavailable`, and it is unknown whether it was applied.
        """
        return await self.committer.commit(ops)

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
    ) -> Page | None:
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
            page = Page(record, encoding.build_rows(int(reply[1]), fetched), bool(reply[3]))
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
            for name, fields in page:
                record = parse_record_or_none(encoding.decode_text(name), encoding.parse_hash(fields))
                if record is not None and record.matches(owner=owner, query=query):
                    found.append(record)
            if len(page) < _PAGE_SIZE:
                break
            after = Cursor(float(encoding.parse_hash(page[-1][1])[b"updated_at"]), encoding.decode_text(page[-1][0]))
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

    async def get_run(self, run_id: str) -> RunRecord | None:
        raise Unsupported(_RUNS_UNSUPPORTED)

    async def list_runs(self, **filters: Any) -> list[RunRecord]:
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


def parse_record_or_none(session_id: str, fields: dict[bytes, bytes]) -> SessionRecord | None:
    """Return the record, or ``None`` if it is missing or damaged, so that a listing can skip it."""
    try:
        return encoding.parse_session_record(session_id, fields) if fields else None
    except StoreUnavailable:
        return None


def validate_ttl(ttl: object) -> float | None:
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= MAX_TTL:
        raise InvalidInput(f"ttl must be a number of seconds above 0 and up to {MAX_TTL}, not {ttl!r}")
    return ttl
