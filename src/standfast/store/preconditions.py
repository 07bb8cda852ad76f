"""What a commit is refused for, and to whom a lease goes, for the backends that decide it in Python."""

from standfast.base.errors import ApprovalMoved, FenceLost, HistoryMoved, InvalidInput, RunMoved
from standfast.store.contract import (
    AcquireLease,
    CheckFence,
    Erase,
    Head,
    Lease,
    LeaseHeld,
    RenewLease,
    SaveApproval,
    SaveRun,
    Splice,
    make_wrong_key_error,
)


def check_view_update(op: Splice) -> None:
    if op.view_update is not None and op.expected is None:
        raise InvalidInput("a shape needs the version it was made for")


def check_seal(op: Splice | Erase, *, sealed: bool, tape: int, found: Head) -> None:
    """Refuse an operation on a stored session that would break its seal."""
    if op.seal is None:
        if sealed and not (isinstance(op, Erase) and op.forget):
            raise make_wrong_key_error(op.session_id)
    elif isinstance(op, Splice) and op.tape != tape:
        raise HistoryMoved(op.session_id, expected=op.expected, found=found)


def check_revision(op: SaveRun | SaveApproval, *, found: int) -> None:
    """Refuse to write over a revision that the writer has not seen; ``found`` is 0 where nothing is stored."""
    if found == op.expected:
        return
    if isinstance(op, SaveRun):
        raise RunMoved(op.run_id, expected=op.expected, found=found)
    raise ApprovalMoved(op.approval_id, expected=op.expected, found=found)


def grant_lease(op: AcquireLease, held: Lease | None, now: float) -> Lease:
    """The lease as it is handed out; its token is a higher one unless the owner had it all the time."""
    if held is None:
        return Lease(op.name, op.owner, 1, now + op.ttl)
    lasts = held.expires_at > now
    if lasts and held.owner != op.owner:
        raise LeaseHeld(op.name, owner=held.owner, expires_at=held.expires_at)
    return Lease(op.name, op.owner, held.token if lasts else held.token + 1, now + op.ttl)


def check_lease_token(op: RenewLease | CheckFence, held: Lease | None) -> Lease:
    """The lease of this token, if nobody took it since and it was not given back."""
    if held is None or held.token != op.token or not held.owner:
        raise FenceLost(op.name, expected=op.token, found=held.token if held else 0)
    return held
