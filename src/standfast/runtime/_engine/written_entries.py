"""The newest entries of a run that this process drives, so that its readers here need not read them from the store."""

from collections import deque
from collections.abc import Sequence

from standfast.store.operations import AppendJournal, Op, OpResult, SaveRun
from standfast.store.records import JournalEnd, LogEntry

MAX_ENTRIES = 64
MAX_BYTES = 65_536


class WrittenEntries:
    """Entries without a gap, up to the last one that this process knows of, and the status of the run then."""

    def __init__(self, length: int = 0) -> None:
        self.rows: deque[LogEntry] = deque()
        self.length = length
        """The number of the last entry, -1 if it is not known."""
        self.status = ""
        """Empty if the run may have changed since."""
        self._bytes = 0

    def add(self, ops: Sequence[Op], results: Sequence[OpResult] | None) -> None:
        """Add what a commit of this process has written; without results, that is not known."""
        rows = list[LogEntry]()
        for op, result in zip(ops, results or (), strict=False):
            if isinstance(op, AppendJournal) and isinstance(result, JournalEnd):
                first = result.length - len(op.entries) + 1
                rows = [LogEntry(seq, kind, data, result.at) for seq, (kind, data) in enumerate(op.entries, first)]
        if not rows or rows[0].seq != self.length + 1:  # others have written, too
            self.forget()
        if not rows:
            return
        self.length = rows[-1].seq
        self.status = next((op.status for op in ops if isinstance(op, SaveRun)), self.status)
        self.rows.extend(rows)
        self._bytes += sum(len(row.data) for row in rows)
        while len(self.rows) > MAX_ENTRIES or self._bytes > MAX_BYTES:
            self._bytes -= len(self.rows.popleft().data)

    def forget(self) -> None:
        """Forget everything: the store has something that this process does not know."""
        self.rows.clear()
        self.length, self._bytes, self.status = -1, 0, ""

    def covers(self, after: int) -> bool:
        """Return whether the entries after this one are known, and the status of the run."""
        return bool(self.status and self.rows) and self.rows[0].seq <= after + 1 <= self.length + 1
