"""The state machine of agent switches. Sans I/O: events in, commands out.

Handoffs and ``update_agent`` take the same steps: resolve the agent, send its settings to the model, and make it the
current agent when the model has acknowledged them. Switches run one at a time, in the order of their requests. A switch
that fails leaves the old agent current. If the model may have applied the new settings, the old ones are restored
before the next switch starts.
"""

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from standfast.realtime._session.resolved_agent import ResolvedAgent
from standfast.realtime.agent import RealtimeAgent


@dataclass(frozen=True, eq=False, slots=True)
class SwitchRequest:
    """A request to make ``agent`` current; with ``expected_current``, only while that one is the current agent."""

    agent: RealtimeAgent[Any]
    reason: Literal["handoff", "update"]
    expected_current: ResolvedAgent | None = None


@dataclass(frozen=True, slots=True)
class ResolveAgent:
    """Resolve the agent of the request."""

    request: SwitchRequest


@dataclass(frozen=True, slots=True)
class SendSettings:
    """Send these settings to the model and wait for its acknowledgement."""

    request: SwitchRequest
    new: ResolvedAgent


@dataclass(frozen=True, slots=True)
class CommitSwitch:
    """Announce the switch, which is complete."""

    request: SwitchRequest
    old: ResolvedAgent
    new: ResolvedAgent


@dataclass(frozen=True, slots=True)
class SkipSwitch:
    """Drop the request: its expected agent is no longer current."""

    request: SwitchRequest


@dataclass(frozen=True, slots=True)
class RestoreSettings:
    """Send the model the settings of the agent that stays current."""

    old: ResolvedAgent


SwitchCommand = ResolveAgent | SendSettings | CommitSwitch | SkipSwitch | RestoreSettings


class _SwitchPhase(Enum):
    RESOLVING = "resolving"
    SENDING = "sending"
    RESTORING = "restoring"


class AgentTransitions:
    """The current agent and the requested switches."""

    current: ResolvedAgent
    """Set when the session opens. Afterwards only a switch that the model has acknowledged replaces it."""

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
        """Handle a step that failed, or a request that was cancelled.

        ``uncertain`` means that the model may have applied the settings that were sent.
        """
        if request is not self._in_progress:
            self._queue = deque(waiting for waiting in self._queue if waiting is not request)
            return []
        if uncertain and self._phase is _SwitchPhase.SENDING:
            self._in_progress, self._phase = None, _SwitchPhase.RESTORING
            return [RestoreSettings(self.current)]
        return self._finish()

    def on_restored(self) -> list[SwitchCommand]:
        """Continue after the old settings were restored, or could not be."""
        return self._finish()

    def _finish(self) -> list[SwitchCommand]:
        self._in_progress = self._phase = None
        return self._start_next()

    def _start_next(self) -> list[SwitchCommand]:
        commands: list[SwitchCommand] = []
        while self._phase is None and self._queue:
            request = self._queue.popleft()
            if request.expected_current is None or request.expected_current is self.current:
                self._in_progress, self._phase = request, _SwitchPhase.RESOLVING
                commands.append(ResolveAgent(request))
            else:
                commands.append(SkipSwitch(request))
        return commands
