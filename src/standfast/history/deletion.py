"""Delete a session with its runs that have ended."""

from contextlib import suppress
from typing import Literal, TypeAlias

import msgspec

from standfast.base.conversations import forget_conversation
from standfast.base.errors import InvalidInput, NotFound, RunMoved, SessionBusy, SessionDamaged, Unsupported
from standfast.history.compat.branches import parse_branches
from standfast.history.compat.turns import get_log_id, is_turn_log
from standfast.history.session import make_conversation_key
from standfast.store.backend import Backend
from standfast.store.operations import DeleteRun, Erase, Op
from standfast.store.records import ENDED_RUN_STATUSES, RunRecord, SessionRecord
from standfast.workspaces.branches import build_deletion_ops
from standfast.workspaces.versions import list_workspaces, name_session_workspace

RunsOfSession: TypeAlias = Literal["delete", "keep"]
_PAGE_SIZE = 200


class DeletedSession(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted with a session, and the runs that still contain words of its conversation."""

    session_id: str
    """The id of the session."""
    deleted_runs: tuple[str, ...] = ()
    """The ids of the runs that were deleted with it."""
    kept_runs: tuple[str, ...] = ()
    """The ids of the runs that were kept, and still contain words of the conversation."""


async def delete_session(backend: Backend, session_id: str, *, runs: RunsOfSession) -> DeletedSession:
    """Delete the session and, unless ``runs`` is ``keep``, its runs, in one commit."""
    if runs not in ("delete", "keep"):
        raise InvalidInput(f"runs must be 'delete' or 'keep', not {runs!r}")
    while True:
        erasures = await build_erase_ops(backend, session_id)
        found = await list_ended_runs(backend, session_id)
        if not erasures and not (found and runs == "delete"):
            raise NotFound("session", session_id)
        deleted = found if runs == "delete" else []
        kept = found if runs == "keep" else []
        # A fork is younger than the run whose journal it shares, and must be deleted before it.
        deletions = [DeleteRun(run_id=run.run_id, expected=run.revision) for run in reversed(deleted)]
        with suppress(RunMoved):  # resumed in the meantime, or ended
            await backend.commit(*erasures, *deletions)
            forget_conversation(make_conversation_key(backend.location, session_id))
            return DeletedSession(
                session_id=session_id,
                deleted_runs=tuple(run.run_id for run in deleted),
                kept_runs=tuple(run.run_id for run in kept),
            )


async def build_erase_ops(backend: Backend, session_id: str) -> list[Op]:
    """Return the operations that delete the session with all that belongs to it; none if it is missing."""
    record: SessionRecord | None = None
    try:
        record = await backend.get_session(session_id)
        if record is None:
            return []
    except SessionDamaged:
        pass  # the session exists, and its record need not be readable to be deleted
    ops: list[Op] = [Erase(session_id=session_id, forget=True)]
    with suppress(SessionDamaged):
        ops += [Erase(session_id=branch, forget=True) for branch in parse_branches(record).values()]
    log = await backend.get_session(get_log_id(session_id))
    if log is not None and await is_turn_log(backend, log):
        ops.append(Erase(session_id=log.session_id, forget=True))
    if record is not None and await has_approvals(backend, record.approvals_id):
        ops.append(DeleteRun(run_id=record.approvals_id, expected=0))
    return ops + await build_deletion_ops(backend, *list_workspaces(name_session_workspace(session_id)))


async def has_approvals(backend: Backend, run_id: str) -> bool:
    try:
        return bool(await backend.list_approvals(status=None, run_id=run_id, session_id=None, limit=1, after=""))
    except Unsupported:  # a store of histories only
        return False


async def list_ended_runs(backend: Backend, session_id: str) -> list[RunRecord]:
    """Return the runs of the session, or raise :class:`SessionBusy` if one of them has not ended."""
    records: list[RunRecord] = []
    try:
        while page := await backend.list_runs(
            status=None, session_id=session_id, limit=_PAGE_SIZE, after=records[-1].order if records else 0
        ):
            records += page
    except Unsupported:  # a store of histories only
        return []
    for record in records:
        if record.status not in ENDED_RUN_STATUSES:
            raise SessionBusy(session_id, run_id=record.run_id, advice="cancel it, or wait until it has ended")
    return records
