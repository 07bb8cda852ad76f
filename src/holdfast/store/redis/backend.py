"""Histories and leases in Redis, one server-side script per commit.

All keys of a session share a hash tag, so that they lie in one slot of a cluster (``t`` is the quoted session id):

    prefix:{t}                  hash    the record; annotations are its fields that begin with ``#``
    prefix:{t}:tape:<n>         hash    the items of a tape by their place. Not a list: a place keeps its number when
                                        a range in the middle is destroyed, and what is missing is simply not there
    prefix:{t}:links:<n>        hash    which forks show that tape, and how far
    prefix:{t}:keys             hash    batch keys, with digest and outcome
    prefix:{t}:generations      hash    what was shown before
    prefix:{t}:quarantine       hash    what could not be read
    prefix:{t}:unlinking        set     holds on ancestors' tapes that an erasure has still to release (clusters only)
    prefix:{t}:lease            hash    the lease of that name; it lies with the session of the same name
    prefix:sessions             zset    the names of all sessions

A tape stays with the session that wrote it, also when that is forgotten; a fork's record remembers where the tapes
lie that it inherited. On one server, a commit sets the time in ``prefix:sessions`` itself. In a cluster that list is
in another slot and can only hint: a name goes in before its session is created, and listing looks at the records.
"""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError, InvalidInput, NotFound, StoreUnavailable, Unsupported
from holdfast.base.ids import checked_name
from holdfast.store.contract import (
    Annotate,
    ApprovalRecord,
    Cursor,
    Found,
    Generation,
    Lease,
    Logged,
    Op,
    Outcome,
    Page,
    Quarantined,
    Require,
    RunRecord,
    SessionRecord,
    Splice,
)
from holdfast.store.redis import wire
from holdfast.store.redis.server import Client, Script, Server, open_client
from holdfast.store.redis.wire import Link, LinkChange, Piece, Step, tag_of

LONGEST_TTL = 10**12
_PAGE = 100
_AT_ONCE = 8
_FORGOTTEN_AFTER = 3600
"""Seconds after which a listed name without a record is no longer that of a session about to be created."""

_NO_RUNS = "Redis stores keep histories and leases, not runs"

_COMMIT, _READ, _LIST, _HINTS = map(Script, ("commit.lua", "read.lua", "list.lua", "hints.lua"))


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
        self.prefix = checked_prefix(prefix)
        self.ttl = checked_ttl(ttl)
        self.owns_client = owns_client
        self.clock = clock
        self.server = Server(client)
        self.cluster: bool | None = None

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
        checked_prefix(prefix)
        checked_ttl(ttl)
        client, where = open_client(url, **(redis_kwargs or {}))
        backend = cls(client, prefix=prefix, ttl=ttl, owns_client=True, clock=clock)
        backend.server.where = where
        return backend

    async def close(self) -> None:
        await self.server.close()
        if self.owns_client:
            await self.server.client.aclose()

    async def ping(self) -> bool:
        """Whether the server answers."""
        try:
            await self.spread()
            await self.server.call("EXISTS", self.list_key.encode(), key=self.list_key)
        except StoreUnavailable:
            return False
        return True

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[Outcome]:
        """See the contract. A lost answer is :class:`StoreUnavailable`, and nobody knows whether it was written.

        A batch that may be sent twice, such as keyed splices, is sent twice before that happens.
        """
        spread = await self.spread()
        for op in ops:
            if type(op) not in wire.ENCODERS:
                raise Unsupported(f"Redis stores keep histories and leases, not {type(op).__name__}")
            if isinstance(op, Splice) and op.shape is not None and op.expected is None:
                raise InvalidInput("a shape needs the version it was made for")
        if not ops:
            return []
        origins = await self.find_tapes(ops)
        if spread and len({*map(wire.home_of, ops), *origins.values()}) > 1:
            return await self.commit_apart(ops, origins)
        return await self.carry_out(ops, origins)

    async def carry_out(self, steps: Sequence[Step], origins: wire.Origins, *, listed: bool = False) -> list[Outcome]:
        """Run one batch where it belongs, and in a cluster what follows from it elsewhere."""
        spread = await self.spread()
        homes = dict.fromkeys(self.key(wire.home_of(step)) for step in steps)
        keys = [*homes] if spread else [*homes, self.list_key]
        args = [
            self.prefix.encode(),
            b"" if self.clock is None else wire.number(self.clock()),
            b"" if self.ttl is None else wire.number(math.ceil(self.ttl * 1000)),
            wire.flag(spread),
            wire.flag(listed),
        ]
        for step in steps:
            args += wire.ENCODERS[type(step)](step, origins)
        verdict, *facts = await self.server.run(_COMMIT, keys, args, again=wire.repeatable(steps))
        if verdict == b"unlisted":
            await self.hint(steps)
            return await self.carry_out(steps, origins, listed=True)
        if verdict == b"refused":
            raise wire.refusal(steps[int(facts[0])], facts[1], facts[2:])
        outcomes, unlinking, prolonging = facts
        if unlinking:
            await self.change_links("unlink", map(Link.parse, unlinking))
            done = next(iter(homes)) + ":unlinking"
            await self.server.call("SREM", done.encode(), *unlinking, key=done)
        await self.change_links("prolong", map(Link.parse, prolonging))
        return [wire.outcome(step, reply) for step, reply in zip(steps, outcomes, strict=True)]

    async def hint(self, steps: Sequence[Step]) -> None:
        """List a session that is about to be created. Without it later listings would never look for it."""
        session_id = next(step.session_id for step in steps if isinstance(step, (Splice, Annotate)))
        await self.server.run(_HINTS, [self.list_key], [b"add", wire.text(session_id)], again=True)

    async def change_links(self, verb: str, links: Any) -> None:
        for link in links:
            await self.carry_out([LinkChange(verb, link)], {})

    async def commit_apart(self, ops: Sequence[Op], origins: wire.Origins) -> list[Outcome]:
        """Create a session out of others that lie in other slots of a cluster.

        First their tapes learn of the fork, the parent's under the check of its version, then the fork is created.
        Stored items are never changed, so from the first step on the fork's part cannot be destroyed; a crash in
        between leaves a hold that nobody uses.
        """
        homes = {wire.home_of(op) for op in ops if not isinstance(op, Require)}
        away = [op for op in ops if wire.home_of(op) not in homes]
        if len(homes) != 1 or (away and not any(isinstance(op, Splice) and op.expected == 0 for op in ops)):
            raise Unsupported("in a Redis cluster a batch must stay with one session, or be a fork")
        holds = [
            LinkChange("link", Link(tape, op.tape, origins[tape]), upto)
            for op in ops
            if isinstance(op, Splice)
            for tape, upto in op.links
            if tape in origins and origins[tape] not in homes
        ]
        parents = {wire.home_of(op) for op in away}
        # The parent last: while it stands at this version, it holds on to what it shows of its own ancestors.
        steps: list[list[Step]] = [[hold] for hold in holds if hold.link.origin not in parents]
        steps += [[op, *(hold for hold in holds if hold.link.origin == wire.home_of(op))] for op in away]
        try:
            for step in steps:
                await self.carry_out(step, origins)
            rest = iter(await self.carry_out([op for op in ops if op not in away], origins))
        except StoreUnavailable:
            raise
        except HoldfastError:
            await self.change_links("unlink", [hold.link for hold in holds])
            raise
        return [None if op in away else next(rest) for op in ops]

    async def find_tapes(self, ops: Sequence[Op]) -> dict[int, str]:
        """The tags under which the tapes lie that forks in this batch are going to show.

        A fork's batch names its parent, whose record knows. Otherwise all sessions are looked at.
        """
        wanted = {tape for op in ops if isinstance(op, Splice) for tape, _ in op.links}
        found: dict[int, str] = {}
        if not wanted:
            return found
        for session_id in dict.fromkeys(op.session_id for op in ops if isinstance(op, Require)):
            found |= wire.origins_in(tag_of(session_id), await self.fields(session_id))
        if wanted <= found.keys():
            return found
        for name, _ in (await self.listed())[1]:
            found |= wire.origins_in(tag_of(wire.untext(name)), await self.fields(wire.untext(name)))
            if wanted <= found.keys():
                break
        return found

    # --- reading --------------------------------------------------------------------------------

    async def record(self, session_id: str) -> SessionRecord | None:
        fields = await self.fields(session_id)
        return wire.session_record(session_id, fields) if fields else None

    async def read(
        self,
        session_id: str,
        *,
        start: int = 0,
        stop: int | None = None,
        last: int | None = None,
        generation: int | None = None,
    ) -> Page | None:
        tag = tag_of(session_id)
        limits = [b"" if value is None else wire.number(value) for value in (generation, start, stop, last)]
        args = [self.prefix.encode(), tag.encode(), wire.flag(await self.spread()), *limits]
        while True:
            reply = await self.server.run(_READ, [self.key(tag)], args, again=True)
            if reply is None:
                return None
            if len(reply) == 1:
                raise NotFound("generation", generation)
            record = wire.session_record(session_id, wire.pairs(reply[0]))
            pieces = [Piece.parse(piece) for piece in reply[2]]
            whole = [await self.fetched(piece) for piece in pieces]
            page = Page(record, wire.rows(int(reply[1]), whole))
            if pieces == whole or all(row.data is not None for row in page.rows) or await self.unchanged(record):
                return page
            # Erased between the two: what was read is a mixture of before and after.

    async def fetched(self, piece: Piece) -> Piece:
        """The piece with its items, also those that lie in another slot."""
        if piece.data is not None or not piece.origin:
            return piece
        key = f"{self.key(piece.origin)}:tape:{piece.span.tape}"
        places = [wire.number(seq) for seq in range(piece.span.start, piece.span.stop)]
        data = await self.server.call("HMGET", key.encode(), *places, key=key)
        return Piece(piece.span, piece.origin, data)

    async def unchanged(self, record: SessionRecord) -> bool:
        again = await self.record(record.session_id)
        return again is not None and (again.tape, again.version) == (record.tape, record.version)

    async def sessions(
        self, *, owner: str | None, query: str | None, limit: int, after: Cursor | None
    ) -> list[SessionRecord]:
        found: list[SessionRecord] = []
        if await self.spread():
            found = await self.all_records()
            if after is not None:
                last = (after.updated_at, after.session_id)
                found = [record for record in found if (record.updated_at, record.session_id) < last]
            return [record for record in found if shows(record, owner=owner, query=query)][:limit]
        while len(found) < limit:
            cursor = [wire.number(after.updated_at), wire.text(after.session_id)] if after else [b"", b""]
            args = [self.prefix.encode(), wire.number(_PAGE), *cursor]
            page = await self.server.run(_LIST, [self.list_key], args, again=True)
            for name, fields in page:
                record = readable(wire.untext(name), wire.pairs(fields))
                if record is not None and shows(record, owner=owner, query=query):
                    found.append(record)
            if len(page) < _PAGE:
                break
            after = Cursor(float(wire.pairs(page[-1][1])[b"updated_at"]), wire.untext(page[-1][0]))
        return found[:limit]

    async def all_records(self) -> list[SessionRecord]:
        """Every session of a cluster, newest first. Names of sessions long gone are taken off the list."""
        now, names = await self.listed()
        found: list[SessionRecord] = []
        gone: list[bytes] = []
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            stored = await asyncio.gather(*(self.fields(wire.untext(name)) for name, _ in some))
            for (name, score), fields in zip(some, stored, strict=True):
                record = readable(wire.untext(name), fields)
                if record is not None:
                    found.append(record)
                elif not fields and now - float(score) > _FORGOTTEN_AFTER:
                    gone += [name, score]
        if gone:
            await self.server.run(_HINTS, [self.list_key], [b"drop", *gone], again=True)
        return sorted(found, key=lambda record: (record.updated_at, record.session_id), reverse=True)

    async def listed(self) -> tuple[float, list[tuple[bytes, bytes]]]:
        """The server's time, and all listed names with their scores."""
        now, names = await self.server.run(_HINTS, [self.list_key], [b"all"], again=True)
        return float(now), list(zip(names[::2], names[1::2], strict=True))

    async def generations(self, session_id: str) -> list[Generation]:
        entries = await self.hash(self.key(tag_of(session_id)) + ":generations")
        return sorted((wire.generation(*entry) for entry in entries.items()), key=lambda entry: entry.number)

    async def quarantined(self, session_id: str) -> list[Quarantined]:
        entries = await self.hash(self.key(tag_of(session_id)) + ":quarantine")
        return sorted((wire.quarantined(*entry) for entry in entries.items()), key=lambda one: (one.tape, one.seq))

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[Found] | None:
        return None

    async def lease(self, name: str) -> Lease | None:
        held = await self.hash(self.key(tag_of(name)) + ":lease")
        if not held.get(b"owner"):
            return None
        return Lease(name, wire.untext(held[b"owner"]), int(held[b"token"]), float(held[b"expires_at"]))

    # --- what is not kept here ------------------------------------------------------------------

    async def run(self, run_id: str) -> RunRecord | None:
        raise Unsupported(_NO_RUNS)

    async def runs(
        self, *, status: Sequence[str] | None, session_id: str | None, limit: int, after: int
    ) -> list[RunRecord]:
        raise Unsupported(_NO_RUNS)

    async def journal(self, run_id: str, *, after: int) -> list[Logged]:
        raise Unsupported(_NO_RUNS)

    async def events(self, run_id: str, *, after: int, limit: int) -> list[Logged]:
        raise Unsupported(_NO_RUNS)

    async def approval(self, approval_id: str) -> ApprovalRecord | None:
        raise Unsupported(_NO_RUNS)

    async def approvals(
        self, *, status: str | None, run_id: str | None, session_id: str | None, limit: int, after: str
    ) -> list[ApprovalRecord]:
        raise Unsupported(_NO_RUNS)

    async def approvals_due(
        self, *, status: str, at: float, limit: int, after: ApprovalRecord | None
    ) -> list[ApprovalRecord]:
        raise Unsupported(_NO_RUNS)

    async def time(self) -> float:
        raise Unsupported(_NO_RUNS)

    # --- shared parts ---------------------------------------------------------------------------

    @property
    def list_key(self) -> str:
        return f"{self.prefix}:sessions"

    def key(self, tag: str) -> str:
        return f"{self.prefix}:{{{tag}}}"

    async def spread(self) -> bool:
        """Whether sessions may lie in different slots; found out once."""
        self.server.check_open()
        if self.cluster is None:
            self.cluster = await self.server.is_cluster(self.key("a"), self.key("b"))
        return self.cluster

    async def fields(self, session_id: str) -> dict[bytes, bytes]:
        return await self.hash(self.key(tag_of(session_id)))

    async def hash(self, key: str) -> dict[bytes, bytes]:
        return wire.pairs(await self.server.call("HGETALL", key.encode(), key=key))


def readable(session_id: str, fields: dict[bytes, bytes]) -> SessionRecord | None:
    """The record, or ``None`` if it is gone or damaged: that must not hide the other sessions of a list."""
    try:
        return wire.session_record(session_id, fields) if fields else None
    except StoreUnavailable:
        return None


def shows(record: SessionRecord, *, owner: str | None, query: str | None) -> bool:
    if owner is not None and record.owner != owner:
        return False
    if not query:
        return True
    told = msgspec.json.encode(record.metadata).decode()
    return query.lower() in record.session_id.lower() or query.lower() in told.lower()


def checked_prefix(prefix: object) -> str:
    name = checked_name("key prefix", prefix)
    if "{" in name or "}" in name:
        raise InvalidInput(f"a key prefix has no braces, they mark what a cluster hashes: {name!r}")
    return name


def checked_ttl(ttl: object) -> float | None:
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= LONGEST_TTL:
        raise InvalidInput(f"ttl must be a number of seconds above 0 and up to {LONGEST_TTL}, not {ttl!r}")
    return ttl
