"""One owner of a workspace at a time: a lease with a fencing token, held while a cell runs."""

import asyncio
from dataclasses import dataclass

from standfast.base.errors import StandfastError
from standfast.base.time import Backoff
from standfast.store.backend import Backend
from standfast.store.operations import AcquireLease, CheckFence, LeaseHeld, Op, ReleaseLease, RenewLease
from standfast.store.records import Lease
from standfast.workspaces.calls import RecordedCall

LEASE_MARGIN = 60.0
"""Seconds that a lease lasts longer than the longest cell, to write what the cell made."""


class WorkspaceBusy(StandfastError):
    """Another process runs code in this workspace. Nothing was run; retry later."""

    code = "workspace-busy"

    def __init__(self, key: str, *, owner: str) -> None:
        super().__init__(f"the workspace {key!r} is in use by {owner!r}: retry when that call has ended")
        self.key, self.owner = key, owner


@dataclass(frozen=True)
class Ownership:
    """A held lease."""

    lease: Lease
    ttl: float

    def build_release_op(self) -> Op:
        return ReleaseLease(name=self.lease.name, token=self.lease.token)

    def build_renewal_op(self) -> Op:
        return RenewLease(name=self.lease.name, token=self.lease.token, ttl=self.ttl)


async def acquire_workspace(
    backend: Backend, key: str, *, owner: str, ttl: float, patience: float, call: RecordedCall | None
) -> Ownership:
    """Own a workspace, waiting up to ``patience`` seconds for another owner, or raise :class:`WorkspaceBusy`.

    A durable run takes it at once from an earlier owner of its run or session, which cannot write any more.
    """
    name, deadline, backoff = f"workspace:{key}", asyncio.get_running_loop().time() + patience, Backoff(maximum=0.5)
    if call is not None:
        owner = f"{call.fence[0]}#{call.fence[1]}"
    acquire = AcquireLease(name=name, owner=owner, ttl=ttl)
    while True:
        try:
            (lease,) = await backend.commit(acquire)
            break
        except LeaseHeld as held:
            found = await backend.get_lease(name)
            if found is not None and call is not None and found.owner.startswith(f"{call.fence[0]}#"):
                release = ReleaseLease(name=name, token=found.token)
                *_, lease = await backend.commit(CheckFence(*call.fence), release, acquire)
                break
            if asyncio.get_running_loop().time() > deadline:
                raise WorkspaceBusy(key, owner=held.owner) from None
            await asyncio.sleep(backoff.next_delay())
    assert isinstance(lease, Lease)  # noqa: S101 - the result of AcquireLease
    return Ownership(lease, ttl)
