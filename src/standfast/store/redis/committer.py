"""Commits of the Redis backend: one server-side script each, in a cluster also across slots."""

import math
from collections.abc import Iterable, Sequence

from standfast.base.errors import StandfastError, StoreUnavailable, Unsupported
from standfast.base.time import Clock
from standfast.store.operations import Annotate, Op, OpResult, RequireVersion, Splice
from standfast.store.preconditions import check_view_update
from standfast.store.redis import encoding
from standfast.store.redis.connection import LuaScript
from standfast.store.redis.encoding import CommitStep, ForkLink, ForkLinkChange, make_tag
from standfast.store.redis.keys import HINTS_SCRIPT, Keyspace

COMMIT_SCRIPT = LuaScript("commit.lua")


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
        own_keys, keys, args = await self.encode_steps(steps, origins, listed=listed)
        status, *details = await self.connection.run_script(
            COMMIT_SCRIPT, keys, args, retry=encoding.is_repeatable(steps)
        )
        if status == b"unlisted":
            await self.add_to_session_list(steps)
            return await self.run_steps(steps, origins, listed=True)
        if status == b"refused":
            raise encoding.error_from_refusal(steps[int(details[0])], details[1], details[2:])
        results, unlinking, prolonging = details
        if unlinking:
            await self.change_links("unlink", map(ForkLink.parse, unlinking))
            pending = own_keys[0] + ":unlinking"
            await self.connection.execute("SREM", pending.encode(), *unlinking, key=pending)
        await self.change_links("prolong", map(ForkLink.parse, prolonging))
        return [encoding.parse_result(step, reply) for step, reply in zip(steps, results, strict=True)]

    async def encode_steps(
        self, steps: Sequence[CommitStep], origins: encoding.TapeOrigins, *, listed: bool = False
    ) -> tuple[list[str], list[str], list[bytes]]:
        """Return the keys of the sessions, and the keys and arguments of the script for these steps."""
        spread = await self.keys.is_clustered()
        own_keys = list(dict.fromkeys(self.keys.make_key(encoding.get_step_tag(step)) for step in steps))
        args = [
            self.keys.prefix.encode(),
            b"" if self.clock is None else encoding.encode_number(self.clock()),
            b"" if self.ttl is None else encoding.encode_number(math.ceil(self.ttl * 1000)),
            encoding.encode_flag(spread),
            encoding.encode_flag(listed),
        ]
        for step in steps:
            args += encoding.ENCODERS[type(step)](step, origins)
        return own_keys, own_keys if spread else [*own_keys, self.keys.sessions_key], args

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
