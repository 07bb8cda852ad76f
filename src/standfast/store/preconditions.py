"""Preconditions of a commit, for the backends that check them in Python, and the errors of the store package."""

from standfast.base.errors import (
    ApprovalMoved,
    FenceLost,
    HistoryMoved,
    InvalidInput,
    RunMoved,
    StandfastError,
    WrongKey,
)
from standfast.store.operations import AcquireLease, CheckFence, Erase, RenewLease, SaveApproval, SaveRun, Splice
from standfast.store.records import Head, Lease


class LeaseHeld(StandfastError):
    """Another owner holds the lease. Nothing was written."""

    code = "lease-held"

    def __init__(self, name: str, *, owner: str, expires_at: float) -> None:
        super().__init__(f"lease {name!r} is held by {owner!r}")
        self.name, self.owner, self.expires_at = name, owner, expires_at


def make_wrong_key_error(session_id: str) -> WrongKey:
    return WrongKey(f"session {session_id!r} is encrypted: open it with EncryptedSession and its key")


def check_view_update(op: Splice) -> None:
    if op.view_update is not None and op.expected is None:
        raise InvalidInput("a view update requires 'expected', the version of the record it was computed from")


def check_seal(op: Splice | Erase, *, sealed: bool, tape: int, found: Head) -> None:
    """Refuse an operation on a stored session that would invalidate its seal."""
    if op.seal is None:
        if sealed and not (isinstance(op, Erase) and op.forget):
            raise make_wrong_key_error(op.session_id)
    elif isinstance(op, Splice) and op.tape != tape:
        raise HistoryMoved(op.session_id, expected=op.expected, found=found)


def check_revision(op: SaveRun | SaveApproval, *, found: int) -> None:
    """Refuse to overwrite a revision that the writer has not read; ``found`` is 0 if nothing is stored."""
    if found == op.expected:
        return
    if isinstance(op, SaveRun):
        raise RunMoved(op.run_id, expected=op.expected, found=found)
    raise ApprovalMoved(op.approval_id, expected=op.expected, found=found)


def grant_lease(op: AcquireLease, held: Lease | None, now: float) -> Lease:
    """Return the lease for its new owner. The token increases unless the same owner held the lease without a gap."""
    if held is None:
        return Lease(op.name, op.owner, 1, now + op.ttl)
    unexpired = held.expires_at > now
    if unexpired and held.owner != op.owner:
        raise LeaseHeld(op.name, owner=held.owner, expires_at=held.expires_at)
    return Lease(op.name, op.owner, held.token if unexpired else held.token + 1, now + op.ttl)


def check_lease_token(op: RenewLease | CheckFence, held: Lease | None) -> Lease:
    """Return the lease if ``op.token`` is still its token and it was not released; otherwise raise FenceLost."""
    if held is None or held.token != op.token or not held.owner:
        raise FenceLost(op.name, expected=op.token, found=held.token if held else 0)
    return held
