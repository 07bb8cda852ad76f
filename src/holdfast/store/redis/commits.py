"""Commits: one server-side script, and in a cluster what follows from it in other slots."""

import math
from collections.abc import Iterable, Sequence

from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError, StoreUnavailable, Unsupported
from holdfast.store.contract import Annotate, Op, Outcome, Require, Splice
from holdfast.store.redis import wire
from holdfast.store.redis.keyspace import HINTS, Keyspace
from holdfast.store.redis.server import Script
from holdfast.store.redis.wire import Link, LinkChange, Step, tag_of
from holdfast.store.rules import check_shape

_COMMIT = Script("commit.lua")


class Commits:
    """The one write of a store."""

    def __init__(self, keys: Keyspace, *, ttl: float | None, clock: Clock | None) -> None:
        self.keys, self.server = keys, keys.server
        self.ttl, self.clock = ttl, clock

    async def commit(self, ops: Sequence[Op]) -> list[Outcome]:
        spread = await self.keys.spread()
        for op in ops:
            if type(op) not in wire.ENCODERS:
                raise Unsupported(f"Redis stores keep histories and leases, not {type(op).__name__}")
            if isinstance(op, Splice):
                check_shape(op)
        if not ops:
            return []
        origins = await self.find_tapes(ops)
        if spread and len({*map(wire.home_of, ops), *origins.values()}) > 1:
            return await self.commit_apart(ops, origins)
        return await self.carry_out(ops, origins)

    async def carry_out(self, steps: Sequence[Step], origins: wire.Origins, *, listed: bool = False) -> list[Outcome]:
        """Run one batch where it belongs, and in a cluster what follows from it elsewhere."""
        spread = await self.keys.spread()
        homes = dict.fromkeys(self.keys.key(wire.home_of(step)) for step in steps)
        keys = [*homes] if spread else [*homes, self.keys.list_key]
        args = [
            self.keys.prefix.encode(),
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
        await self.server.run(HINTS, [self.keys.list_key], [b"add", wire.text(session_id)], again=True)

    async def change_links(self, verb: str, links: Iterable[Link]) -> None:
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
            LinkChange("link", Link(tape, op.tape, origins[tape]), wire.held(op, tape))
            for op in ops
            if isinstance(op, Splice)
            for tape, _ in op.links
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
            found |= wire.origins_in(tag_of(session_id), await self.keys.fields(session_id))
        if wanted <= found.keys():
            return found
        for name, _ in (await self.keys.listed())[1]:
            found |= wire.origins_in(tag_of(wire.untext(name)), await self.keys.fields(wire.untext(name)))
            if wanted <= found.keys():
                break
        return found
