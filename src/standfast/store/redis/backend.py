"""Histories and leases in Redis, one server-side script per commit."""

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Any, Self

from standfast.base.clock import Clock
from standfast.base.errors import InvalidInput, NotFound, StandfastError, StoreUnavailable, Unsupported
from standfast.store.backend import Cursor
from standfast.store.operations import Annotate, Op, OpResult, RequireVersion, Splice
from standfast.store.preconditions import check_view_update
from standfast.store.records import (
    ApprovalRecord,
    Generation,
    Lease,
    LogEntry,
    Page,
    QuarantinedItem,
    RunRecord,
    SearchCandidate,
    SessionRecord,
)
from standfast.store.redis import encoding
from standfast.store.redis.connection import Client, RedisConnection, Script, open_client
from standfast.store.redis.encoding import CommitStep, ForkLink, ForkLinkChange, TapeSegment, make_tag
from standfast.store.redis.keys import DEFAULT_PREFIX, HINTS_SCRIPT, Keyspace, validate_prefix

_COMMIT_SCRIPT = Script("commit.lua")


class RedisCommitter:
    """The one write of a store."""

    def __init__(self, keys: Keyspace, *, ttl: float | None, clock: Clock | None) -> None:
        self.keys, self.connection = keys, keys.connection
        self.ttl, self.clock = ttl, clock

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        spread = await self.keys.is_clustered()
        for op in ops:
            if type(op) not in encoding.ENCODERS:
                raise Unsupported(f"Redis stores keep histories and leases, not {type(op).__name__}")
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
        """Run one batch where it belongs, and in a cluster what follows from it elsewhere."""
        spread = await self.keys.is_clustered()
        homes = dict.fromkeys(self.keys.make_key(encoding.get_step_tag(step)) for step in steps)
        keys = [*homes] if spread else [*homes, self.keys.sessions_key]
        args = [
            self.keys.prefix.encode(),
            b"" if self.clock is None else encoding.encode_number(self.clock()),
            b"" if self.ttl is None else encoding.encode_number(math.ceil(self.ttl * 1000)),
            encoding.encode_flag(spread),
            encoding.encode_flag(listed),
        ]
        for step in steps:
            args += encoding.ENCODERS[type(step)](step, origins)
        verdict, *facts = await self.connection.run_script(
            _COMMIT_SCRIPT, keys, args, retry=encoding.is_repeatable(steps)
        )
        if verdict == b"unlisted":
            await self.add_to_session_list(steps)
            return await self.run_steps(steps, origins, listed=True)
        if verdict == b"refused":
            raise encoding.error_from_refusal(steps[int(facts[0])], facts[1], facts[2:])
        outcomes, unlinking, prolonging = facts
        if unlinking:
            await self.change_links("unlink", map(ForkLink.parse, unlinking))
            done = next(iter(homes)) + ":unlinking"
            await self.connection.execute("SREM", done.encode(), *unlinking, key=done)
        await self.change_links("prolong", map(ForkLink.parse, prolonging))
        return [encoding.parse_result(step, reply) for step, reply in zip(steps, outcomes, strict=True)]

    async def add_to_session_list(self, steps: Sequence[CommitStep]) -> None:
        """List a session that is about to be created. Without it later listings would never look for it."""
        session_id = next(step.session_id for step in steps if isinstance(step, (Splice, Annotate)))
        await self.connection.run_script(
            HINTS_SCRIPT, [self.keys.sessions_key], [b"add", encoding.encode_text(session_id)], retry=True
        )

    async def change_links(self, action: str, links: Iterable[ForkLink]) -> None:
        for link in links:
            await self.run_steps([ForkLinkChange(action, link)], {})

    async def commit_across_slots(self, ops: Sequence[Op], origins: encoding.TapeOrigins) -> list[OpResult]:
        """Create a session out of others that lie in other slots of a cluster.

        First their tapes learn of the fork, the parent's under the check of its version, then the fork is created.
        Stored items are never changed, so from the first step on the fork's part cannot be destroyed; a crash in
        between leaves a hold that nobody uses.
        """
        homes = {encoding.get_step_tag(op) for op in ops if not isinstance(op, RequireVersion)}
        away = [op for op in ops if encoding.get_step_tag(op) not in homes]
        if len(homes) != 1 or (away and not any(isinstance(op, Splice) and op.expected == 0 for op in ops)):
            raise Unsupported("in a Redis cluster a batch must stay with one session, or be a fork")
        holds = [
            ForkLinkChange("link", ForkLink(tape, op.tape, origins[tape]), encoding.encode_held_ranges(op, tape))
            for op in ops
            if isinstance(op, Splice)
            for tape, _ in op.links
            if tape in origins and origins[tape] not in homes
        ]
        parents = {encoding.get_step_tag(op) for op in away}
        # The parent last: while it stands at this version, it holds on to what it shows of its own ancestors.
        steps: list[list[CommitStep]] = [[hold] for hold in holds if hold.link.origin not in parents]
        steps += [[op, *(hold for hold in holds if hold.link.origin == encoding.get_step_tag(op))] for op in away]
        try:
            for step in steps:
                await self.run_steps(step, origins)
            rest = iter(await self.run_steps([op for op in ops if op not in away], origins))
        except StoreUnavailable:
            raise
        except StandfastError:
            await self.change_links("unlink", [hold.link for hold in holds])
            raise
        return [None if op in away else next(rest) for op in ops]

    async def find_tape_origins(self, ops: Sequence[Op]) -> dict[int, str]:
        """The tags under which the tapes lie that forks in this batch are going to show.

        A fork's batch names its parent, whose record knows. Otherwise all sessions are looked at.
        """
        wanted = {tape for op in ops if isinstance(op, Splice) for tape, _ in op.links}
        found: dict[int, str] = {}
        if not wanted:
            return found
        for session_id in dict.fromkeys(op.session_id for op in ops if isinstance(op, RequireVersion)):
            found |= encoding.parse_origins(make_tag(session_id), await self.keys.read_session_fields(session_id))
        if wanted <= found.keys():
            return found
        for name, _ in (await self.keys.list_session_names())[1]:
            found |= encoding.parse_origins(
                make_tag(encoding.decode_text(name)), await self.keys.read_session_fields(encoding.decode_text(name))
            )
            if wanted <= found.keys():
                break
        return found


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
        prefix: str = DEFAULT_PREFIX,
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
        prefix: str = DEFAULT_PREFIX,
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
            pieces = [TapeSegment.parse(piece) for piece in reply[2]]
            whole = [await self.fetch_segment(piece) for piece in pieces]
            page = Page(record, encoding.build_rows(int(reply[1]), whole))
            if pieces == whole or all(row.data is not None for row in page.rows) or await self.is_unchanged(record):
                return page
            # Erased between the two: what was read is a mixture of before and after.

    async def fetch_segment(self, segment: TapeSegment) -> TapeSegment:
        """The piece with its items, also those that lie in another slot."""
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
        """Every session of a cluster, newest first. Names of sessions long gone are taken off the list."""
        now, names = await self.keys.list_session_names()
        found: list[SessionRecord] = []
        gone: list[bytes] = []
        for first in range(0, len(names), _MAX_CONCURRENT_READS):
            some = names[first : first + _MAX_CONCURRENT_READS]
            stored = await asyncio.gather(
                *(self.keys.read_session_fields(encoding.decode_text(name)) for name, _ in some)
            )
            for (name, score), fields in zip(some, stored, strict=True):
                record = parse_record_or_none(encoding.decode_text(name), fields)
                if record is not None:
                    found.append(record)
                elif not fields and now - float(score) > _STALE_NAME_SECONDS:
                    gone += [name, score]
        if gone:
            await self.connection.run_script(HINTS_SCRIPT, [self.keys.sessions_key], [b"drop", *gone], retry=True)
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
        held = await self.keys.read_hash(name, ":lease")
        if not held.get(b"owner"):
            return None
        return Lease(name, encoding.decode_text(held[b"owner"]), int(held[b"token"]), float(held[b"expires_at"]))

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
        return encoding.parse_session_record(session_id, fields) if fields else None
    except StoreUnavailable:
        return None


def validate_ttl(ttl: object) -> float | None:
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= MAX_TTL:
        raise InvalidInput(f"ttl must be a number of seconds above 0 and up to {MAX_TTL}, not {ttl!r}")
    return ttl
