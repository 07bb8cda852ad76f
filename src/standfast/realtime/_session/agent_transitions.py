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

from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime.agent import RealtimeAgent


@dataclass(frozen=True, eq=False, slots=True)
class SwitchRequest:
    """A wish that ``agent`` take over; with ``instead_of`` only as long as that one speaks."""

    agent: RealtimeAgent[Any]
    reason: Literal["handoff", "update"]
    expected_current: ResolvedAgent | None = None


@dataclass(frozen=True, slots=True)
class ResolveAgent:
    """Find out what the model has to know of the agent."""

    request: SwitchRequest


@dataclass(frozen=True, slots=True)
class SendSettings:
    """Give the model these settings and wait for its acknowledgement."""

    request: SwitchRequest
    new: ResolvedAgent


@dataclass(frozen=True, slots=True)
class CommitSwitch:
    """It is done: let everybody know."""

    request: SwitchRequest
    old: ResolvedAgent
    new: ResolvedAgent


@dataclass(frozen=True, slots=True)
class SkipSwitch:
    """The one that it was to take over from does not speak any more: nothing is done."""

    request: SwitchRequest


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """Give the model the settings of the agent that stays."""

    old: ResolvedAgent


SwitchCommand = ResolveAgent | SendSettings | CommitSwitch | SkipSwitch | RestoreSettings


class _SwitchPhase(Enum):
    RESOLVING = "resolving"
    SENDING = "telling"
    RESTORING = "restoring"


class AgentTransitions:
    """The one who speaks, and the changes that were asked for."""

    current: ResolvedAgent
    """Set when the session opens. From then on it is replaced by a change that the model has acknowledged, only."""

    def __init__(self) -> None:
        self._queue: deque[SwitchRequest] = deque()
        self._in_progress: SwitchRequest | None = None
        self._phase: _SwitchPhase | None = None

    def submit(self, request: SwitchRequest) -> list[SwitchCommand]:
        self._queue.append(request)
        return self._start_next()

    def on_resolved(self, request: SwitchRequest, new: ResolvedAgent) -> list[SwitchCommand]:
        self._phase = _SwitchPhase.SENDING
        return [SendSettings(request, new)]

    def on_acknowledged(self, request: SwitchRequest, new: ResolvedAgent) -> list[SwitchCommand]:
        old, self.current = self.current, new
        return [CommitSwitch(request, old, new), *self._finish()]

    def on_failed(self, request: SwitchRequest, *, uncertain: bool) -> list[SwitchCommand]:
        """A step failed or was given up, or nobody waits for this change any more.

        ``in_doubt``: the model may have what it was told.
        """
        if request is not self._in_progress:
            self._queue = deque(waiting for waiting in self._queue if waiting is not request)
            return []
        if uncertain and self._phase is _SwitchPhase.SENDING:
            self._in_progress, self._phase = None, _SwitchPhase.RESTORING
            return [RestoreSettings(self.current)]
        return self._finish()

    def on_restored(self) -> list[SwitchCommand]:
        """The model has the old settings again, or cannot be told."""
        return self._finish()

    def _finish(self) -> list[SwitchCommand]:
        self._in_progress = self._phase = None
        return self._start_next()

    def _start_next(self) -> list[SwitchCommand]:
        commands: list[SwitchCommand] = []
        while self._phase is None and self._queue:
            change = self._queue.popleft()
            if change.expected_current is None or change.expected_current is self.current:
                self._in_progress, self._phase = change, _SwitchPhase.RESOLVING
                commands.append(ResolveAgent(change))
            else:
                commands.append(SkipSwitch(change))
        return commands
