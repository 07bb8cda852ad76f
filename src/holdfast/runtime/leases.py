"""Who may drive a run: leases with fencing tokens, one for the run and one for its session."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.base.errors import FenceLost, StoreUnavailable
from holdfast.store.contract import Backend, DropLease, Fence, Lease, LeaseHeld, Op, RenewLease, TakeLease

_log = logging.getLogger(__name__)


def run_lease(run_id: str) -> str:
    return f"run:{run_id}"


def session_lease(session_id: str) -> str:
    return f"session:{session_id}"


@dataclass(eq=False)
class Hold:
    """The leases under which one run is driven here. Every write carries them; once ``lost``, nothing is written."""

    run_id: str
    tokens: dict[str, int] = field(default_factory=dict)
    lost: bool = False
    releasing: bool = False
    """It is being given back: that nobody can renew it any more is no loss."""
    on_loss: Callable[[], None] | None = None

    @property
    def token(self) -> int:
        return self.tokens[run_lease(self.run_id)]

    def fences(self) -> list[Op]:
        return [Fence(name, token) for name, token in self.tokens.items()]

    def releases(self) -> list[Op]:
        return [DropLease(name=name, token=token) for name, token in self.tokens.items()]

    def lose(self) -> None:
        """Somebody else has it now: stop at once."""
        if not self.lost:
            self.lost = True
            _log.warning("the run %s passed on to another runtime", self.run_id)
            if self.on_loss is not None:
                self.on_loss()


async def take(
    backend: Backend, run_id: str, session_id: str | None, *, owner: str, ttl: float, ops: list[Op]
) -> Hold | None:
    """The leases of a run, taken in one commit with ``ops``; ``None`` when somebody else has one of them."""
    names = [run_lease(run_id)] if session_id is None else [session_lease(session_id), run_lease(run_id)]
    # The owner is named by run: two runs of one runtime must not share the lease of a session.
    wanted = [TakeLease(name=name, owner=f"{owner}/{run_id}", ttl=ttl) for name in names]
    try:
        outcomes = await backend.commit(*wanted, *ops)
    except LeaseHeld:
        return None
    taken = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    return Hold(run_id, {lease.name: lease.token for lease in taken})


class Renewing:
    """Keeps the leases of all runs that are driven here from running out."""

    def __init__(self, backend: Backend, *, ttl: float) -> None:
        self.backend, self.ttl = backend, ttl
        self.holds: set[Hold] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.ttl / 3)
            await self.renew([hold for hold in self.holds if not hold.lost])

    async def renew(self, holds: list[Hold]) -> None:
        ops = [
            RenewLease(name=name, token=token, ttl=self.ttl) for hold in holds for name, token in hold.tokens.items()
        ]
        if not ops:
            return
        try:
            await self.backend.commit(*ops)
        except FenceLost:
            if len(holds) == 1:
                if not holds[0].releasing:
                    holds[0].lose()
                return
            for hold in holds:
                await self.renew([hold])
        except StoreUnavailable as problem:
            _log.warning("leases could not be renewed, trying again: %s", problem)
