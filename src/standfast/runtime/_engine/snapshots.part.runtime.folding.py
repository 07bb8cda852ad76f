"""Writing folds while a run is driven."""

from collections import deque
from collections.abc import Iterable

from holdfast.runtime.folds import can_snapshot, encode_snapshot, get_coverage
from holdfast.runtime.journal import ReplayedRun
from holdfast.runtime.records import decode_entry
from holdfast.runtime.replaying import replay
from holdfast.store.contract import AppendEvents, Backend, RunRecord

SNAPSHOT_INTERVAL = 128
"""Entries of a journal between two folds, or somewhat more: a fold is made where a turn is over."""


class SnapshotWriter:
    """Makes folds of the bytes that the owner of a run writes: what is in memory, the program may have changed."""

    def __init__(self, backend: Backend, record: RunRecord, replayed: ReplayedRun) -> None:
        self._backend, self._record, self._length = backend, record, replayed.length
        self._replayed: ReplayedRun | None = None
        self._pending: deque[bytes] = deque()
        self._entries_since = replayed.length - replayed.coverage.length

    def add_written(self, entries: Iterable[bytes]) -> None:
        """These are in the journal now, behind all others."""
        before = len(self._pending)
        self._pending.extend(entries)
        self._entries_since += len(self._pending) - before

    async def build_due_ops(self) -> list[AppendEvents]:
        """What is to be written with the next entries."""
        if self._entries_since < SNAPSHOT_INTERVAL:
            return []
        if self._replayed is None:
            self._replayed = await replay(self._backend, self._record, upto=self._length)
        run = self._replayed
        while self._pending:
            entry = decode_entry(self._pending.popleft())
            run.apply_entries([entry])
            if (
                entry.mark is not None
                and run.length - run.coverage.length >= SNAPSHOT_INTERVAL
                and can_snapshot(run.state)
            ):
                fold = encode_snapshot(run, entry.mark)
                run.coverage, self._entries_since = get_coverage(run), len(self._pending)
                return [AppendEvents(run_id=self._record.run_id, events=(("fold", fold),))]
        return []
