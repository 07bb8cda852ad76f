"""Leases with fencing tokens, one for a run and one for its session: only their holder executes the run."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from standfast.base.errors import FenceLost, StoreRefused, StoreUnavailable
from standfast.base.log import get_logger
from standfast.store.backend import Backend
from standfast.store.operations import AcquireLease, CheckFence, LeaseHeld, Op, OpResult, ReleaseLease, RenewLease
from standfast.store.records import Lease

_log = get_logger(__name__)

TAKEOVER_LOG = get_logger("standfast.takeovers")
"""Logs that a runtime took over a run, and that it lost one to another runtime."""


def make_run_lease_name(run_id: str) -> str:
    return f"run:{run_id}"


def make_session_lease_name(session_id: str) -> str:
    return f"session:{session_id}"


@dataclass(eq=False)
class RunLeases:
    """The leases of a run that this process executes. Every write checks them; once ``lost``, nothing is written."""

    run_id: str
    tokens: dict[str, int] = field(default_factory=dict)
    lost: bool = False
    releasing: bool = False
    """They are being released: a failed renewal does not mean that they were lost."""
    on_lost: Callable[[], None] | None = None

    @property
    def token(self) -> int:
        return self.tokens[make_run_lease_name(self.run_id)]

    def build_fence_ops(self) -> list[Op]:
        return [CheckFence(name, token) for name, token in self.tokens.items()]

    def build_release_ops(self) -> list[Op]:
        return [ReleaseLease(name=name, token=token) for name, token in self.tokens.items()]

    def mark_lost(self) -> None:
        """Record that another runtime has the leases, and stop the run."""
        if not self.lost:
            self.lost = True
            _log.warning("run %s: lost its lease, another runtime owns the run", self.run_id)
            if self.on_lost is not None:
                self.on_lost()


async def acquire_leases(
    backend: Backend, run_id: str, session_id: str | None, *, owner: str, ttl: float, ops: list[Op]
) -> tuple[RunLeases, list[OpResult]] | None:
    """Acquire the leases of a run in one commit with ``ops``, and return them with the results of ``ops``.

    Return ``None`` when another owner has one of them.
    """
    names = (
        [make_run_lease_name(run_id)]
        if session_id is None
        else [make_session_lease_name(session_id), make_run_lease_name(run_id)]
    )
    # The owner includes the run: two runs of one runtime must not share the lease of a session.
    acquire = [AcquireLease(name=name, owner=f"{owner}/{run_id}", ttl=ttl) for name in names]
    try:
        outcomes = await backend.commit(*acquire, *ops)
    except LeaseHeld:
        return None
    leases = [outcome for outcome in outcomes if isinstance(outcome, Lease)]
    return RunLeases(run_id, {lease.name: lease.token for lease in leases}), outcomes[len(names) :]


class LeaseRenewer:
    """Renews the leases of all runs that this runtime executes."""

    def __init__(self, backend: Backend, *, ttl: float) -> None:
        self.backend, self.ttl = backend, ttl
        self.held: set[RunLeases] = set()

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.ttl / 3)
            await self.renew([leases for leases in self.held if not leases.lost])

    async def renew(self, held: list[RunLeases]) -> None:
        ops = [
            RenewLease(name=name, token=token, ttl=self.ttl) for leases in held for name, token in leases.tokens.items()
        ]
        if not ops:
            return
        try:
            await self.backend.commit(*ops)
        except FenceLost:
            if len(held) == 1:
                if not held[0].releasing:
                    held[0].mark_lost()
                return
            for leases in held:
                await self.renew([leases])
        except (StoreRefused, StoreUnavailable) as problem:
            _log.warning("leases could not be renewed, retrying: %s", problem)
