"""The preconditions of operations, for the backends that check them in Python."""

from standfast.base.errors import (
    ApprovalMoved,
    DocumentMoved,
    FenceLost,
    HistoryMoved,
    InvalidInput,
    JournalMoved,
    OutsideScope,
    RunMoved,
    WorkspaceMoved,
)
from standfast.store.operations import (
    AcquireLease,
    Annotate,
    AppendJournal,
    AppendVersions,
    CheckFence,
    DeleteDocument,
    DeleteRun,
    Erase,
    LeaseHeld,
    PutDocument,
    RenewLease,
    RewriteRun,
    RewriteVersions,
    SaveApproval,
    SaveRun,
    Splice,
    make_encrypted_run_error,
    make_wrong_key_error,
)
from standfast.store.records import Head, Lease, WorkspaceRecord


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


def check_version(session_id: str, expected: int | None, *, found: Head) -> None:
    """Refuse to change a history that has another version than the writer has read; ``None`` accepts any version."""
    if expected is not None and expected != found.version:
        raise HistoryMoved(session_id, expected=expected, found=found)


def check_owner(op: Annotate, *, found: str | None) -> None:
    """Refuse to claim a session that has another owner."""
    if op.claim and op.owner is not None and found not in (None, op.owner):
        raise OutsideScope(op.owner)


def check_revision(op: SaveRun | DeleteRun | SaveApproval, *, found: int) -> None:
    """Refuse to overwrite a revision that the writer has not read; ``found`` is 0 if nothing is stored."""
    if found == op.expected:
        return
    if isinstance(op, (SaveRun, DeleteRun)):
        raise RunMoved(op.run_id, expected=op.expected, found=found)
    raise ApprovalMoved(op.approval_id, expected=op.expected, found=found)


def check_workspace(op: AppendVersions | RewriteVersions, *, found: WorkspaceRecord | None) -> None:
    """Refuse versions that do not follow the latest one, or that belong to a deleted workspace of the same key."""
    version = found.version if found else 0
    expected = op.expected if isinstance(op, AppendVersions) else len(op.versions)
    if expected != version or (found is not None and found.workspace_id != op.workspace_id):
        raise WorkspaceMoved(op.key, expected=expected, found=version)


def check_document(op: PutDocument | DeleteDocument, *, found: int) -> None:
    """Refuse to change a revision that the writer has not read; ``found`` is 0 if nothing is stored."""
    if op.expected is not None and op.expected != found:
        raise DocumentMoved(op.kind, op.key, expected=op.expected, found=found)


def check_journal(op: AppendJournal, *, seal: bytes | None, found: int) -> None:
    """Refuse entries that would invalidate the seal of the journal, whose length is ``found``."""
    if seal is not None and op.seal is None:
        raise make_encrypted_run_error(op.run_id)
    moved = op.expected is not None and op.expected != found
    if moved or (op.previous_seal is not None and op.previous_seal != seal):
        raise JournalMoved(op.run_id, expected=op.expected, found=found)


def check_rewrite(op: RewriteRun, *, seal: bytes | None, journal: int, events: int) -> None:
    """Refuse to replace the bytes of a run that has changed since they were read."""
    if seal != op.previous_seal or journal != len(op.journal) or events != len(op.events):
        raise JournalMoved(op.run_id, expected=len(op.journal), found=journal)


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
