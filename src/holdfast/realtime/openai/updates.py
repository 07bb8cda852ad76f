"""Which change of the settings an answer of the server is about. No I/O.

The server answers changes in the order in which they came, and names them only when it rejects them. So an answer is
one to the first change that has none, unless that one's was given up: it may come late, or never. Then what the server
tells of its settings decides.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.realtime.errors import SettingsRejected

Place: TypeAlias = tuple[str, ...]

_UNKNOWN = object()


@dataclass(eq=False, slots=True)
class Update:
    """A change that was sent. ``answered`` with an ``error`` means that the settings before it hold."""

    event_id: str
    wanted: dict[Place, Any]
    """Each value, by the names that lead to it."""
    awaited: bool = False
    """Somebody waits for the answer, or has."""
    answered: bool = False
    error: SettingsRejected | None = None
    abandoned: bool = False
    """Nobody waits for the answer any more."""


class Updates:
    """The changes of which an answer may come, in order."""

    def __init__(self) -> None:
        self._open: deque[Update] = deque()
        self._count = 0
        self.session: Any = None
        """The settings as the server told them last."""

    def made(self, session: Any, event_id: str | None = None) -> Update:
        self._count += 1
        return Update(event_id or f"hf_session_{self._count}", dict(_values(session)))

    def sent(self, update: Update) -> None:
        """An answer to it may come. One that could not be sent must not take the answer to the next."""
        self._open.append(update)

    def accepted(self, session: Any) -> None:
        """The server has taken a change, and has these settings now."""
        before, self.session = self.session, session
        if not self._open:
            return
        awaited = next((update for update in self._open if not (update.abandoned or update.answered)), None)
        first = self._open.popleft()
        if awaited is not None and (awaited is first or not _lacks(session, awaited, before=before, first=first)):
            awaited.answered = True

    def rejected(self, error: dict[str, Any]) -> bool:
        """Whether this error of the server was about a change, and whoever made it is told."""
        event_id = error.get("event_id")
        for update in self._open:
            if update.event_id == event_id or (event_id is None and str(error.get("param")).startswith("session")):
                self._open.remove(update)
                too_late, update.answered, update.error = update.answered, True, SettingsRejected(error)
                return update.awaited and not too_late
        return False


def _lacks(session: Any, awaited: Update, *, before: Any, first: Update) -> bool:
    """Whether settings are as the ``first`` change left them, and nothing in them is due to the one ``awaited``."""
    unchanged = False
    for place, value in awaited.wanted.items():
        old, now = first.wanted.get(place, _at(before, place)), _at(session, place)
        if value != old:
            if now == value:
                return False
            unchanged = unchanged or (now is not _UNKNOWN and now == old)
    return unchanged


def _values(session: Any, place: Place = ()) -> list[tuple[Place, Any]]:
    if not isinstance(session, dict):
        return [(place, session)]
    return [value for name, part in session.items() for value in _values(part, (*place, name))]


def _at(session: Any, place: Place) -> Any:
    for name in place:
        if not isinstance(session, dict) or name not in session:
            return _UNKNOWN
        session = session[name]
    return session
