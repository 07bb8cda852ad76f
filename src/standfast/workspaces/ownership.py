"""One owner of a workspace at a time: a lease with a fencing token, held while a cell runs.

The tool calls of durable runs hold it in the name of their run: see :class:`RecordedCall`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

from standfast.base.errors import FenceLost, StandfastError
from standfast.base.log import get_logger
from standfast.base.time import Backoff
from standfast.lifecycle import Scope
from standfast.store.backend import Backend
from standfast.store.operations import AcquireLease, CheckFence, LeaseHeld, Op, ReleaseLease, RenewLease
from standfast.store.records import Lease

_log = get_logger(__name__)


class RecordedCall(Protocol):
    """A tool call whose outcome is committed by a runtime.

    What the call adds with ``add_ops`` and ``add_note`` is written in the commit of its outcome, or not at all.
    ``finished`` is set afterwards, and ``committed`` says whether it was written.
    """

    run_id: str
    """The durable run, also if a nested run of it makes the call."""
    fence: tuple[str, int]
    """The lease that makes the run the only one of its conversation, and its token."""
    finished: asyncio.Event
    committed: bool

    def add_ops(self, *ops: Op) -> None: ...

    def add_note(self, kind: str, data: dict[str, Any]) -> None: ...

    async def record_note(self, kind: str, data: dict[str, Any], *ops: Op) -> None:
        """Write a note about the run together with operations, in a commit of its own."""
        ...

    def before_stop(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do this before the run ends or pauses. Only the last request of a conversation counts."""
        ...


LEASE_SECONDS = 20.0
"""How long a process that was killed or stopped keeps others from a workspace."""
_RENEWAL_INTERVAL = 5.0


class WorkspaceBusy(StandfastError):
    """Another process runs code in this workspace. Nothing was run; retry later."""

    code = "workspace-busy"

    def __init__(self, key: str, *, owner: str) -> None:
        super().__init__(f"the workspace {key!r} is in use by {owner!r}: retry when that call has ended")
        self.key, self.owner = key, owner


@dataclass(frozen=True)
class Ownership:
    """A held lease."""

    backend: Backend
    lease: Lease

    def build_fence_op(self) -> Op:
        """Return the precondition that no other process has acquired the lease since."""
        return CheckFence(self.lease.name, self.lease.token)

    def build_release_op(self) -> Op:
        return ReleaseLease(name=self.lease.name, token=self.lease.token)

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Renew the lease until the block ends, and release it if the block fails."""
        async with Scope() as scope:
            renewal = scope.start(self._renew(), name="renewal of a workspace's lease")
            try:
                yield
            except BaseException:
                with suppress(StandfastError):
                    await asyncio.shield(self.backend.commit(self.build_release_op()))
                raise
            finally:
                renewal.cancel()

    async def _renew(self) -> None:
        renewal = RenewLease(name=self.lease.name, token=self.lease.token, ttl=LEASE_SECONDS)
        while True:
            await asyncio.sleep(_RENEWAL_INTERVAL)
            try:
                await self.backend.commit(renewal)
            except FenceLost:
                return
            except StandfastError as problem:  # the next attempt may succeed, and without it nothing is written
                _log.warning("the lease %s was not renewed: %s", self.lease.name, problem)


async def acquire_workspace(
    backend: Backend, key: str, *, owner: str, wait: float, call: RecordedCall | None, check: Op | None = None
) -> Ownership:
    """Own a workspace, waiting up to ``wait`` seconds for another owner, or raise :class:`WorkspaceBusy`.

    A durable run takes it at once from an earlier owner of its run or session, which can no longer write. ``check`` is
    a precondition that is committed together with the lease.
    """
    name, deadline, backoff = f"workspace:{key}", asyncio.get_running_loop().time() + wait, Backoff(maximum=0.5)
    if call is not None:
        owner = f"{call.fence[0]}#{call.fence[1]}"
    acquire = AcquireLease(name=name, owner=owner, ttl=LEASE_SECONDS)
    # The workspace before its lease, as in the commits of versions: databases lock rows in this order.
    first: tuple[Op, ...] = () if check is None else (check,)
    while True:
        try:
            *_, lease = await backend.commit(*first, acquire)
            break
        except LeaseHeld as held:
            found = await backend.get_lease(name)
            first = () if check is None else (check,)
            if found is not None and call is not None and found.owner.startswith(f"{call.fence[0]}#"):
                first += (CheckFence(*call.fence), ReleaseLease(name=name, token=found.token))
                continue
            if asyncio.get_running_loop().time() > deadline:
                raise WorkspaceBusy(key, owner=held.owner) from None
            await asyncio.sleep(backoff.next_delay())
    assert isinstance(lease, Lease)  # noqa: S101 - the result of AcquireLease
    return Ownership(backend, lease)
