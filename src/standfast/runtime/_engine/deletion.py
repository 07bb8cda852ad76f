"""Delete runs that have ended: one by its id, or many by age and count."""

from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

import msgspec

from standfast.base.errors import InvalidInput, NotFound, RunMoved, RunShared
from standfast.base.validation import is_integer, is_number
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.records import ENDED_STATUSES, PUBLIC_STATUS
from standfast.runtime.errors import RunActive
from standfast.runtime.types import PruneReport
from standfast.store.operations import DeleteRun
from standfast.workspaces.branches import build_deletion_ops
from standfast.workspaces.versions import list_workspaces, name_run_workspace

_PAGE_SIZE = 200


async def delete_run(ctx: RuntimeContext, run_id: str) -> None:
    """Delete a run that has ended, with its journal, events and approvals."""
    while True:
        record = await ctx.get_run(run_id)
        if record.status not in ENDED_STATUSES:
            raise RunActive(run_id, status=PUBLIC_STATUS[record.status])
        with suppress(RunMoved):
            workspaces = await build_deletion_ops(ctx.backend, *list_workspaces(name_run_workspace(run_id)))
            await ctx.backend.commit(DeleteRun(run_id=run_id, expected=record.revision), *workspaces)
            return


class EndedRun(msgspec.Struct, frozen=True):
    """What pruning needs of a run; the headers of all runs would take too much memory."""

    run_id: str
    ended_at: float


async def prune_runs(ctx: RuntimeContext, *, older_than: timedelta | float | None, keep: int | None) -> PruneReport:
    """Delete the ended runs that are older than that, or not among the latest ``keep``."""
    age, count = _validate_age(older_than), _validate_count(keep)
    if age is None and count is None:
        raise InvalidInput("prune needs older_than=, keep= or both; nothing was deleted")
    await ctx.sync_clock()
    ended = [run async for run in _iter_ended(ctx)]
    ended.reverse()  # a fork is younger than the run whose journal it shares, and must be deleted before it
    deleted, shared = [], []
    for index, run in enumerate(ended):
        if (count is not None and index >= count) or (age is not None and run.ended_at < ctx.clock() - age):
            try:
                await delete_run(ctx, run.run_id)
            except RunShared:
                shared.append(run.run_id)
            except (RunActive, NotFound):  # resumed, or deleted by another process
                continue
            else:
                deleted.append(run.run_id)
    return PruneReport(tuple(deleted), len(ended) - len(deleted), tuple(shared))


async def _iter_ended(ctx: RuntimeContext) -> AsyncIterator[EndedRun]:
    after = 0
    while page := await ctx.backend.list_runs(status=ENDED_STATUSES, session_id=None, limit=_PAGE_SIZE, after=after):
        for record in page:
            yield EndedRun(record.run_id, record.updated_at)
        after = page[-1].order


def _validate_age(older_than: object) -> float | None:
    seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
    if seconds is None:
        return None
    if not is_number(seconds, allow_infinity=True) or not seconds >= 0:
        raise InvalidInput(f"older_than must be a timedelta or a number of seconds >= 0, not {older_than!r}")
    return float(seconds)


def _validate_count(keep: object) -> int | None:
    if keep is not None and (not is_integer(keep) or keep < 0):
        raise InvalidInput(f"keep must be an integer >= 0, not {keep!r}")
    return keep
