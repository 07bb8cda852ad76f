"""Commits: one server-side script, and in a cluster what follows from it in other slots."""

import math
from collections.abc import Iterable, Sequence

from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError, StoreUnavailable, Unsupported
from holdfast.store.contract import Annotate, Op, OpResult, RequireVersion, Splice
from holdfast.store.redis import wire
from holdfast.store.redis.keyspace import HINTS_SCRIPT, Keyspace
from holdfast.store.redis.server import Script
from holdfast.store.redis.wire import CommitStep, ForkLink, ForkLinkChange, make_tag
from holdfast.store.rules import check_view_update

_COMMIT_SCRIPT = Script("commit.lua")


class RedisCommitter:
    """The one write of a store."""

    def __init__(self, keys: Keyspace, *, ttl: float | None, clock: Clock | None) -> None:
        self.keys, self.connection = keys, keys.connection
        self.ttl, self.clock = ttl, clock

    async def commit(self, ops: Sequence[Op]) -> list[OpResult]:
        spread = await self.keys.is_clustered()
        for op in ops:
            if type(op) not in wire.ENCODERS:
                raise Unsupported(f"Redis stores keep histories and leases, not {type(op).__name__}")
            if isinstance(op, Splice):
                check_view_update(op)
        if not ops:
            return []
        origins = await self.find_tape_origins(ops)
        if spread and len({*map(wire.get_step_tag, ops), *origins.values()}) > 1:
            return await self.commit_across_slots(ops, origins)
        return await self.run_steps(ops, origins)

    async def run_steps(
        self, steps: Sequence[CommitStep], origins: wire.TapeOrigins, *, listed: bool = False
    ) -> list[OpResult]:
        """Run one batch where it belongs, and in a cluster what follows from it elsewhere."""
        spread = await self.keys.is_clustered()
        homes = dict.fromkeys(self.keys.make_key(wire.get_step_tag(step)) for step in steps)
        keys = [*homes] if spread else [*homes, self.keys.sessions_key]
        args = [
            self.keys.prefix.encode(),
            b"" if self.clock is None else wire.encode_number(self.clock()),
            b"" if self.ttl is None else wire.encode_number(math.ceil(self.ttl * 1000)),
            wire.encode_flag(spread),
            wire.encode_flag(listed),
        ]
        for step in steps:
            args += wire.ENCODERS[type(step)](step, origins)
        verdict, *facts = await self.connection.run_script(_COMMIT_SCRIPT, keys, args, retry=wire.is_repeatable(steps))
        if verdict == b"unlisted":
            await self.add_to_session_list(steps)
            return await self.run_steps(steps, origins, listed=True)
        if verdict == b"refused":
            raise wire.error_from_refusal(steps[int(facts[0])], facts[1], facts[2:])
        outcomes, unlinking, prolonging = facts
        if unlinking:
            await self.change_links("unlink", map(ForkLink.parse, unlinking))
            done = next(iter(homes)) + ":unlinking"
            await self.connection.execute("SREM", done.encode(), *unlinking, key=done)
        await self.change_links("prolong", map(ForkLink.parse, prolonging))
        return [wire.parse_result(step, reply) for step, reply in zip(steps, outcomes, strict=True)]

    async def add_to_session_list(self, steps: Sequence[CommitStep]) -> None:
        """List a session that is about to be created. Without it later listings would never look for it."""
        session_id = next(step.session_id for step in steps if isinstance(step, (Splice, Annotate)))
        await self.connection.run_script(
            HINTS_SCRIPT, [self.keys.sessions_key], [b"add", wire.encode_text(session_id)], retry=True
        )

    async def change_links(self, action: str, links: Iterable[ForkLink]) -> None:
        for link in links:
            await self.run_steps([ForkLinkChange(action, link)], {})

    async def commit_across_slots(self, ops: Sequence[Op], origins: wire.TapeOrigins) -> list[OpResult]:
        """Create a session out of others that lie in other slots of a cluster.

        First their tapes learn of the fork, the parent's under the check of its version, then the fork is created.
        Stored items are never changed, so from the first step on the fork's part cannot be destroyed; a crash in
        between leaves a hold that nobody uses.
        """
        homes = {wire.get_step_tag(op) for op in ops if not isinstance(op, RequireVersion)}
        away = [op for op in ops if wire.get_step_tag(op) not in homes]
        if len(homes) != 1 or (away and not any(isinstance(op, Splice) and op.expected == 0 for op in ops)):
            raise Unsupported("in a Redis cluster a batch must stay with one session, or be a fork")
        holds = [
            ForkLinkChange("link", ForkLink(tape, op.tape, origins[tape]), wire.encode_held_ranges(op, tape))
            for op in ops
            if isinstance(op, Splice)
            for tape, _ in op.links
            if tape in origins and origins[tape] not in homes
        ]
        parents = {wire.get_step_tag(op) for op in away}
        # The parent last: while it stands at this version, it holds on to what it shows of its own ancestors.
        steps: list[list[CommitStep]] = [[hold] for hold in holds if hold.link.origin not in parents]
        steps += [[op, *(hold for hold in holds if hold.link.origin == wire.get_step_tag(op))] for op in away]
        try:
            for step in steps:
                await self.run_steps(step, origins)
            rest = iter(await self.run_steps([op for op in ops if op not in away], origins))
        except StoreUnavailable:
            raise
        except HoldfastError:
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
            found |= wire.parse_origins(make_tag(session_id), await self.keys.read_session_fields(session_id))
        if wanted <= found.keys():
            return found
        for name, _ in (await self.keys.list_session_names())[1]:
            found |= wire.parse_origins(
                make_tag(wire.decode_text(name)), await self.keys.read_session_fields(wire.decode_text(name))
            )
            if wanted <= found.keys():
                break
        return found
