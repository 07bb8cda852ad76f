"""Histories and leases in Redis, one server-side script per commit."""

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from holdfast.base.clock import Clock
from holdfast.base.errors import InvalidInput, NotFound, StoreUnavailable, Unsupported
from holdfast.store.contract import (
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
    RunRecord,
    SessionRecord,
)
from holdfast.store.redis import wire
from holdfast.store.redis.commits import Commits
from holdfast.store.redis.keyspace import HINTS, Keyspace, checked_prefix
from holdfast.store.redis.server import Client, Script, Server, open_client
from holdfast.store.redis.wire import Piece, tag_of

LONGEST_TTL = 10**12
_PAGE = 100
_AT_ONCE = 8
_FORGOTTEN_AFTER = 3600
"""Seconds after which a listed name without a record is no longer that of a session about to be created."""

_NO_RUNS = "Redis stores keep histories and leases, not runs"

_READ, _LIST = Script("read.lua"), Script("list.lua")


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
        self.server = Server(client)
        self.keys = Keyspace(self.server, prefix)
        self.commits = Commits(self.keys, ttl=checked_ttl(ttl), clock=clock)

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
            await self.keys.spread()
            await self.server.call("EXISTS", self.keys.list_key.encode(), key=self.keys.list_key)
        except StoreUnavailable:
            return False
        return True

    # --- writing --------------------------------------------------------------------------------

    async def commit(self, *ops: Op) -> list[Outcome]:
        """See the contract. A lost answer is :class:`StoreUnavailable`, and nobody knows whether it was written.

        A batch that may be sent twice, such as keyed splices, is sent twice before that happens.
        """
        return await self.commits.commit(ops)

    # --- reading --------------------------------------------------------------------------------

    async def record(self, session_id: str) -> SessionRecord | None:
        fields = await self.keys.fields(session_id)
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
        args = [self.keys.prefix.encode(), tag.encode(), wire.flag(await self.keys.spread()), *limits]
        while True:
            reply = await self.server.run(_READ, [self.keys.key(tag)], args, again=True)
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
        key = f"{self.keys.key(piece.origin)}:tape:{piece.span.tape}"
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
        if await self.keys.spread():
            found = await self.all_records()
            if after is not None:
                last = (after.updated_at, after.session_id)
                found = [record for record in found if (record.updated_at, record.session_id) < last]
            return [record for record in found if record.matches(owner=owner, query=query)][:limit]
        while len(found) < limit:
            cursor = [wire.number(after.updated_at), wire.text(after.session_id)] if after else [b"", b""]
            args = [self.keys.prefix.encode(), wire.number(_PAGE), *cursor]
            page = await self.server.run(_LIST, [self.keys.list_key], args, again=True)
            for name, fields in page:
                record = readable(wire.untext(name), wire.pairs(fields))
                if record is not None and record.matches(owner=owner, query=query):
                    found.append(record)
            if len(page) < _PAGE:
                break
            after = Cursor(float(wire.pairs(page[-1][1])[b"updated_at"]), wire.untext(page[-1][0]))
        return found[:limit]

    async def all_records(self) -> list[SessionRecord]:
        """Every session of a cluster, newest first. Names of sessions long gone are taken off the list."""
        now, names = await self.keys.listed()
        found: list[SessionRecord] = []
        gone: list[bytes] = []
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            stored = await asyncio.gather(*(self.keys.fields(wire.untext(name)) for name, _ in some))
            for (name, score), fields in zip(some, stored, strict=True):
                record = readable(wire.untext(name), fields)
                if record is not None:
                    found.append(record)
                elif not fields and now - float(score) > _FORGOTTEN_AFTER:
                    gone += [name, score]
        if gone:
            await self.server.run(HINTS, [self.keys.list_key], [b"drop", *gone], again=True)
        return sorted(found, key=lambda record: (record.updated_at, record.session_id), reverse=True)

    async def generations(self, session_id: str) -> list[Generation]:
        entries = await self.keys.hash(self.keys.key(tag_of(session_id)) + ":generations")
        return sorted((wire.generation(*entry) for entry in entries.items()), key=lambda entry: entry.number)

    async def quarantined(self, session_id: str) -> list[Quarantined]:
        entries = await self.keys.hash(self.keys.key(tag_of(session_id)) + ":quarantine")
        return sorted((wire.quarantined(*entry) for entry in entries.items()), key=lambda one: (one.tape, one.seq))

    async def search(
        self, terms: Sequence[str], *, session_id: str | None, owner: str | None, limit: int, skip: int
    ) -> list[Found] | None:
        return None

    async def lease(self, name: str) -> Lease | None:
        held = await self.keys.hash(self.keys.key(tag_of(name)) + ":lease")
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


def readable(session_id: str, fields: dict[bytes, bytes]) -> SessionRecord | None:
    """The record, or ``None`` if it is gone or damaged: that must not hide the other sessions of a list."""
    try:
        return wire.session_record(session_id, fields) if fields else None
    except StoreUnavailable:
        return None


def checked_ttl(ttl: object) -> float | None:
    if ttl is None:
        return None
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not 0 < ttl <= LONGEST_TTL:
        raise InvalidInput(f"ttl must be a number of seconds above 0 and up to {LONGEST_TTL}, not {ttl!r}")
    return ttl
