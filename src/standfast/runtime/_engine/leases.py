"""Who may drive a run: leases with fencing tokens, one for the run and one for its session."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from standfast.base.errors import FenceLost, StoreUnavailable
from standfast.store.contract import AcquireLease, Backend, CheckFence, Lease, LeaseHeld, Op, ReleaseLease, RenewLease

_log = logging.getLogger(__name__)


def run_lease_name(run_id: str) -> str:
    return f"run:{run_id}"


def session_lease_name(session_id: str) -> str:
    return f"session:{session_id}"


@dataclass(eq=False)
class RunLeases:
    """The leases under which one run is driven here. Every write carries them; once ``lost``, nothing is written."""

    run_id: str
    tokens: dict[str, int] = field(default_factory=dict)
    lost: bool = False
    releasing: bool = False
    """It is being given back: that nobody can renew it any more is no loss."""
    on_lost: Callable[[], None] | None = None

    @property
    def token(self) -> int:
        return self.tokens[run_lease_name(self.run_id)]

    def build_fence_ops(self) -> list[Op]:
        return [CheckFence(name, token) for name, token in self.tokens.items()]

    def build_release_ops(self) -> list[Op]:
        return [ReleaseLease(name=name, token=token) for name, token in self.tokens.items()]

    def mark_lost(self) -> None:
        """Somebody else has it now: stop at once."""
        if not self.lost:
            self.lost = True
            _log.warning("the run %s passed on to another runtime", self.run_id)
            if self.on_lost is not None:
                self.on_lost()


async def acquire_leases(
    backend: Backend, run_id: str, session_id: str | None, *, owner: str, ttl: float, ops: list[Op]
) -> RunLeases | None:
    """The leases of a run, taken in one commit with ``ops``; ``None`` when somebody else has one of them."""
    names = [run_lease_name(run_id)] if session_id is None else [session_lease_name(session_id), run_lease_name(run_id)]
    # The owner is named by run: two runs of one runtime must not share the lease of a session.
    wanted = [AcquireLease(name=name, owner=f"{owner}/{run_id}", ttl=ttl) for name in names]
    try:
        outcomes = await backend.commit(*wanted, *ops)
    except LeaseHeld:
        return None
    taken = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    return RunLeases(run_id, {lease.name: lease.token for lease in taken})


class LeaseRenewer:
    """Keeps the leases of all runs that are driven here from running out."""

    def __init__(self, backend: Backend, *, ttl: float) -> None:
        self.backend, self.ttl = backend, ttl
        self.held: set[RunLeases] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.ttl / 3)
            await self.renew([hold for hold in self.held if not hold.lost])

    async def renew(self, held: list[RunLeases]) -> None:
        ops = [RenewLease(name=name, token=token, ttl=self.ttl) for hold in held for name, token in hold.tokens.items()]
        if not ops:
            return
        try:
            await self.backend.commit(*ops)
        except FenceLost:
            if len(held) == 1:
                if not held[0].releasing:
                    held[0].mark_lost()
                return
            for hold in held:
                await self.renew([hold])
        except StoreUnavailable as problem:
            _log.warning("leases could not be renewed, trying again: %s", problem)
