"""Retention of workspaces: drop old checkpoints, and sweep what nothing refers to."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from standfast.base.errors import InvalidInput
from standfast.base.validation import is_integer, is_number
from standfast.store.backend import Backend
from standfast.store.operations import DropCheckpoint, SweepBlobs
from standfast.store.records import FreedBlobs, VersionRecord, WorkspaceRecord

_PAGE_SIZE = 100
_SWEEP_LIMIT = 100
SWEEP_AFTER = 3600.0
"""Seconds that a blob without a checkpoint is kept: it may belong to one that is being written."""


@dataclass(frozen=True)
class RetentionReport:
    """How many checkpoints and blobs were deleted, and how many checkpoints remain."""

    dropped: int
    kept: int
    blobs: int


async def prune_workspaces(
    backend: Backend,
    *,
    older_than: timedelta | float | None = None,
    keep: int | None = None,
    max_mb: float | None = None,
    sweep_after: float = SWEEP_AFTER,
) -> RetentionReport:
    """Drop the checkpoints of each workspace that are older than this, not among its latest ``keep``, or over a size.

    ``max_mb`` limits the sizes of a workspace's checkpoints together, counted without what they share. The latest
    checkpoint of a workspace is kept. A version without a checkpoint is restored by running cells again. Blobs without
    a checkpoint are deleted after ``sweep_after`` seconds, in small commits.
    """
    age, limit = _validate(older_than, keep, max_mb), None if max_mb is None else int(max_mb * (1 << 20))
    now = await backend.get_time()
    dropped = kept = blobs = 0
    async for workspace in iterate_workspaces(backend):
        saved = [one for one in await backend.read_versions(workspace.key) if one.checkpoint_id is not None]
        for version in choose_dropped(saved, before=None if age is None else now - age, keep=keep, limit=limit):
            (freed,) = await backend.commit(DropCheckpoint(key=workspace.key, version=version.version))
            blobs += freed.count if isinstance(freed, FreedBlobs) else 0
            dropped += 1
            kept -= 1
        kept += len(saved)
    return RetentionReport(dropped, kept, blobs + await sweep_blobs(backend, before=now - sweep_after))


def choose_dropped(
    saved: list[VersionRecord], *, before: float | None, keep: int | None, limit: int | None
) -> list[VersionRecord]:
    """Return the versions whose checkpoints are dropped; never the latest."""
    dropped, total = [], 0
    for rank, version in enumerate(reversed(saved)):
        total += version.size
        excess = (keep is not None and rank >= keep) or (limit is not None and total > limit)
        if rank and (excess or (before is not None and version.created_at < before)):
            dropped.append(version)
    return dropped


async def sweep_blobs(backend: Backend, *, before: float) -> int:
    """Delete all blobs without a checkpoint that were stored before this time; return their number."""
    count = 0
    while True:
        (freed,) = await backend.commit(SweepBlobs(before=before, limit=_SWEEP_LIMIT))
        assert isinstance(freed, FreedBlobs)  # noqa: S101 - the result of SweepBlobs
        count += freed.count
        if freed.count < _SWEEP_LIMIT:
            break
    objects: Any = getattr(backend, "sweep_objects", None)
    return count + (await objects(before=before) if objects is not None else 0)


async def iterate_workspaces(backend: Backend) -> AsyncIterator[WorkspaceRecord]:
    after = ""
    while page := await backend.list_workspaces(limit=_PAGE_SIZE, after=after):
        for record in page:
            yield record
        after = page[-1].key


def _validate(older_than: Any, keep: Any, max_mb: Any) -> float | None:
    seconds = older_than.total_seconds() if isinstance(older_than, timedelta) else older_than
    if seconds is not None and (not is_number(seconds, allow_infinity=True) or seconds < 0):
        raise InvalidInput(f"older_than must be a timedelta or a number of seconds >= 0, not {older_than!r}")
    if keep is not None and (not is_integer(keep) or keep < 1):
        raise InvalidInput(f"keep must be an integer >= 1, not {keep!r}")
    if max_mb is not None and (not is_number(max_mb, allow_infinity=True) or max_mb < 0):
        raise InvalidInput(f"max_mb must be a number >= 0, not {max_mb!r}")
    return None if seconds is None else float(seconds)
