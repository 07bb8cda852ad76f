"""Matching of the server's answers to settings updates, sans I/O.

The server answers updates in their order, and names an update only when it rejects it. So an acceptance belongs to the
first update without an answer. If that one was abandoned, its answer may come late or never; then the settings that
the server reports decide.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from standfast.realtime.errors import SettingsRejected

SettingPath: TypeAlias = tuple[str, ...]

_UNKNOWN = object()


@dataclass(eq=False, slots=True)
class PendingSessionUpdate:
    """An update of the settings. ``answered`` with an ``error`` means that the previous settings still apply."""

    event_id: str
    values: dict[SettingPath, Any]
    """Each value by its path in the session object."""
    awaited: bool = False
    """Whether a task waits for the answer, or did."""
    answered: bool = False
    error: SettingsRejected | None = None
    abandoned: bool = False
    """Whether the waiting task gave up."""


class SessionUpdateTracker:
    """Tracks the updates whose answers may still come, in order."""

    def __init__(self) -> None:
        self._pending: deque[PendingSessionUpdate] = deque()
        self._count = 0
        self.session: Any = None
        """The settings that the server reported last."""

    def create(self, session: Any, event_id: str | None = None) -> PendingSessionUpdate:
        self._count += 1
        return PendingSessionUpdate(event_id or f"hf_session_{self._count}", dict(_flatten(session)))

    def mark_sent(self, update: PendingSessionUpdate) -> None:
        """Expect an answer to the update. One that was not sent must not take the answer to the next."""
        self._pending.append(update)

    def handle_accepted(self, session: Any) -> None:
        """Handle the acceptance of an update, with the settings that apply now."""
        previous, self.session = self.session, session
        if not self._pending:
            return
        awaited = next((update for update in self._pending if not (update.abandoned or update.answered)), None)
        first = self._pending.popleft()
        if awaited is not None and (
            awaited is first or not _reflects_only_first(session, awaited, previous=previous, first=first)
        ):
            awaited.answered = True

    def handle_rejected(self, error: dict[str, Any]) -> bool:
        """Handle an error. Returns True if a task that waits for an update gets it."""
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
    """Whether the settings are those of the ``first`` update, without any effect of the ``awaited`` one."""
    unchanged = False
    for path, value in awaited.values.items():
        old, current = first.values.get(path, _get_at_path(previous, path)), _get_at_path(session, path)
        if value != old:
            if current == value:
                return False
            unchanged = unchanged or (current is not _UNKNOWN and current == old)
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
