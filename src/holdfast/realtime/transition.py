"""Who speaks, and who is to speak next. No I/O: it is told what happened and says what to do.

Handoffs and ``update_agent`` are the same few steps: resolve the agent, tell the model, and once that is acknowledged
let the agent take over. One change at a time, in the order in which they were asked for. What fails before the end
leaves the old agent in place, here and at the model: one that may have taken the new settings over is told the old ones
before the next change begins.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.snapshot import Snapshot


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """A wish that ``agent`` take over; with ``instead_of`` only as long as that one speaks."""

    agent: RealtimeAgent[Any]
    reason: Literal["handoff", "update"]
    instead_of: Snapshot | None = None


@dataclass(frozen=True, slots=True)
class Resolve:
    """Find out what the model has to know of the agent."""

    change: Change


@dataclass(frozen=True, slots=True)
class Tell:
    """Give the model these settings and wait for its acknowledgement."""

    change: Change
    new: Snapshot


@dataclass(frozen=True, slots=True)
class TakeOver:
    """It is done: let everybody know."""

    change: Change
    old: Snapshot
    new: Snapshot


@dataclass(frozen=True, slots=True)
class Forgo:
    """The one that it was to take over from does not speak any more: nothing is done."""

    change: Change


@dataclass(frozen=True, slots=True)
class Restore:
    """Give the model the settings of the agent that stays."""

    old: Snapshot


Command = Resolve | Tell | TakeOver | Forgo | Restore


class _Step(Enum):
    RESOLVING = "resolving"
    TELLING = "telling"
    RESTORING = "restoring"


class Transitions:
    """The one who speaks, and the changes that were asked for."""

    current: Snapshot
    """Set when the session opens. From then on it is replaced by a change that the model has acknowledged, only."""

    def __init__(self) -> None:
        self._waiting: deque[Change] = deque()
        self._under_way: Change | None = None
        self._step: _Step | None = None

    def ask(self, change: Change) -> list[Command]:
        self._waiting.append(change)
        return self._next()

    def resolved(self, change: Change, new: Snapshot) -> list[Command]:
        self._step = _Step.TELLING
        return [Tell(change, new)]

    def acknowledged(self, change: Change, new: Snapshot) -> list[Command]:
        old, self.current = self.current, new
        return [TakeOver(change, old, new), *self._over()]

    def failed(self, change: Change, *, in_doubt: bool) -> list[Command]:
        """A step failed or was given up, or nobody waits for this change any more.

        ``in_doubt``: the model may have what it was told.
        """
        if change is not self._under_way:
            self._waiting = deque(waiting for waiting in self._waiting if waiting is not change)
            return []
        if in_doubt and self._step is _Step.TELLING:
            self._under_way, self._step = None, _Step.RESTORING
            return [Restore(self.current)]
        return self._over()

    def restored(self) -> list[Command]:
        """The model has the old settings again, or cannot be told."""
        return self._over()

    def _over(self) -> list[Command]:
        self._under_way = self._step = None
        return self._next()

    def _next(self) -> list[Command]:
        commands: list[Command] = []
        while self._step is None and self._waiting:
            change = self._waiting.popleft()
            if change.instead_of is None or change.instead_of is self.current:
                self._under_way, self._step = change, _Step.RESOLVING
                commands.append(Resolve(change))
            else:
                commands.append(Forgo(change))
        return commands
