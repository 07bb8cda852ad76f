"""Which change of the settings an answer of the server is about. No I/O.

The server answers changes in the order in which they came, and names them only when it rejects them. So an answer is
one to the first change that has none, unless that one's was given up: it may come late, or never. Then what the server
tells of its settings decides.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from standfast.realtime.errors import SettingsRejected

SettingPath: TypeAlias = tuple[str, ...]

_UNKNOWN = object()


@dataclass(eq=False, slots=True)
class PendingSessionUpdate:
    """A change that was sent. ``answered`` with an ``error`` means that the settings before it hold."""

    event_id: str
    values: dict[SettingPath, Any]
    """Each value, by the names that lead to it."""
    awaited: bool = False
    """Somebody waits for the answer, or has."""
    answered: bool = False
    error: SettingsRejected | None = None
    abandoned: bool = False
    """Nobody waits for the answer any more."""


class SessionUpdateTracker:
    """The changes of which an answer may come, in order."""

    def __init__(self) -> None:
        self._pending: deque[PendingSessionUpdate] = deque()
        self._count = 0
        self.session: Any = None
        """The settings as the server told them last."""

    def create(self, session: Any, event_id: str | None = None) -> PendingSessionUpdate:
        self._count += 1
        return PendingSessionUpdate(event_id or f"hf_session_{self._count}", dict(_flatten(session)))

    def mark_sent(self, update: PendingSessionUpdate) -> None:
        """An answer to it may come. One that could not be sent must not take the answer to the next."""
        self._pending.append(update)

    def handle_accepted(self, session: Any) -> None:
        """The server has taken a change, and has these settings now."""
        before, self.session = self.session, session
        if not self._pending:
            return
        awaited = next((update for update in self._pending if not (update.abandoned or update.answered)), None)
        first = self._pending.popleft()
        if awaited is not None and (
            awaited is first or not _reflects_only_first(session, awaited, previous=before, first=first)
        ):
            awaited.answered = True

    def handle_rejected(self, error: dict[str, Any]) -> bool:
        """Whether this error of the server was about a change, and whoever made it is told."""
        event_id = error.get("event_id")
        for update in self._pending:
            if update.event_id == event_id or (event_id is None and str(error.get("param")).startswith("session")):
                self._pending.remove(update)
                too_late, update.answered, update.error = update.answered, True, SettingsRejected(error)
                return update.awaited and not too_late
        return False


def _reflects_only_first(
    session: Any, awaited: PendingSessionUpdate, *, previous: Any, first: PendingSessionUpdate
) -> bool:
    """Whether settings are as the ``first`` change left them, and nothing in them is due to the one ``awaited``."""
    unchanged = False
    for place, value in awaited.values.items():
        old, now = first.values.get(place, _get_at_path(previous, place)), _get_at_path(session, place)
        if value != old:
            if now == value:
                return False
            unchanged = unchanged or (now is not _UNKNOWN and now == old)
    return unchanged


def _flatten(session: Any, path: SettingPath = ()) -> list[tuple[SettingPath, Any]]:
    if not isinstance(session, dict):
        return [(path, session)]
    return [value for name, part in session.items() for value in _flatten(part, (*path, name))]


def _get_at_path(session: Any, path: SettingPath) -> Any:
    for name in path:
        if not isinstance(session, dict) or name not in session:
            return _UNKNOWN
        session = session[name]
    return session
