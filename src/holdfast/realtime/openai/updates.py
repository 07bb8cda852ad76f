"""Which change of the settings an answer of the server is about. No I/O.

The server answers changes in the order in which they came, and names them only when it rejects them.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

from holdfast.realtime.errors import SettingsRejected


@dataclass(eq=False, slots=True)
class Update:
    """A change that was sent. ``answered`` with an ``error`` means that the settings before it hold."""

    event_id: str
    answered: bool = False
    error: SettingsRejected | None = None
    abandoned: bool = False
    """Nobody waits for the answer any more."""


class Updates:
    """The changes that the server has not answered, in order."""

    def __init__(self) -> None:
        self._open: deque[Update] = deque()
        self._count = 0

    def sent(self, event_id: str | None = None) -> Update:
        self._count += 1
        update = Update(event_id or f"hf_session_{self._count}")
        self._open.append(update)
        return update

    def accepted(self) -> None:
        """The server has taken a change: the first that somebody waits for, and those before it with it."""
        while self._open:
            update = self._open.popleft()
            update.answered = True
            if not update.abandoned:
                return

    def rejected(self, error: dict[str, Any]) -> bool:
        """Whether this error of the server was about a change."""
        event_id = error.get("event_id")
        for update in self._open:
            if update.event_id == event_id or (event_id is None and str(error.get("param")).startswith("session")):
                update.answered, update.error = True, SettingsRejected(error)
                self._open.remove(update)
                return True
        return False
