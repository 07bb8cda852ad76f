"""Writing folds while a run is driven."""

from collections import deque
from collections.abc import Iterable

from holdfast.runtime.folds import cut_of, foldable, folded
from holdfast.runtime.journal import Replayed
from holdfast.runtime.records import entry_in
from holdfast.runtime.replaying import replay
from holdfast.store.contract import Backend, Emit, RunRecord

EVERY = 128
"""Entries of a journal between two folds, or somewhat more: a fold is made where a turn is over."""


class Folding:
    """Makes folds of the bytes that the owner of a run writes: what is in memory, the program may have changed."""

    def __init__(self, backend: Backend, record: RunRecord, replayed: Replayed) -> None:
        self._backend, self._record, self._length = backend, record, replayed.length
        self._run: Replayed | None = None
        self._waiting: deque[bytes] = deque()
        self._new = replayed.length - replayed.cut.length

    def wrote(self, entries: Iterable[bytes]) -> None:
        """These are in the journal now, behind all others."""
        before = len(self._waiting)
        self._waiting.extend(entries)
        self._new += len(self._waiting) - before

    async def due(self) -> list[Emit]:
        """What is to be written with the next entries."""
        if self._new < EVERY:
            return []
        if self._run is None:
            self._run = await replay(self._backend, self._record, upto=self._length)
        run = self._run
        while self._waiting:
            entry = entry_in(self._waiting.popleft())
            run.go_on([entry])
            if entry.mark is not None and run.length - run.cut.length >= EVERY and foldable(run.state):
                fold = folded(run, entry.mark)
                run.cut, self._new = cut_of(run), len(self._waiting)
                return [Emit(run_id=self._record.run_id, events=(("fold", fold),))]
        return []
