"""From one agent to another: handoffs and ``update_agent`` are the same few steps.

Resolve, send, wait for the acknowledgement, commit and tell; whatever fails before the commit leaves the old agent in
place, here and at the model.
"""

import asyncio
from typing import Any, Literal

from holdfast.agents.hooks import AgentHooks
from holdfast.realtime.agent import RealtimeAgent
from holdfast.realtime.config import RealtimeSessionModelSettings
from holdfast.realtime.errors import Unacknowledged
from holdfast.realtime.events import RealtimeAgentChanged, RealtimeHandoffEvent
from holdfast.realtime.model_inputs import RealtimeModelSendSessionUpdate
from holdfast.realtime.room import Room, log
from holdfast.realtime.snapshot import Snapshot, resolve


class Transitions:
    """One transition at a time; those that come meanwhile wait for their turn."""

    def __init__(self, room: Room, base: RealtimeSessionModelSettings) -> None:
        self._room, self._base = room, base
        self._turn = asyncio.Lock()

    async def to(self, agent: RealtimeAgent[Any], *, reason: Literal["handoff", "update"]) -> None:
        """Make ``agent`` the current one, or raise what kept it from that."""
        async with self._turn:
            room = self._room
            old = room.snapshot
            new = await resolve(agent, room.context, room.run_config, base=self._base)
            try:
                await room.send(RealtimeModelSendSessionUpdate(new.settings))
            except Unacknowledged:
                await self._restore(old)
                raise
            except asyncio.CancelledError:
                room.start(self._restore(old), "restoring the settings")
                raise
            room.snapshot = new
            room.emit(RealtimeAgentChanged(old.agent, agent, reason, room.info))
            if reason == "handoff":
                room.emit(RealtimeHandoffEvent(old.agent, agent, room.info))
                room.start(self._tell(old.agent, agent), "handoff hooks")

    async def _restore(self, old: Snapshot) -> None:
        """The model may or may not have taken the new settings over: make sure that it has the old ones."""
        try:
            await self._room.model.send_event(RealtimeModelSendSessionUpdate(old.settings))
        except Exception as error:  # noqa: BLE001 - the first failure is the one to tell
            log.warning("the settings of %r could not be restored: %s", old.agent.name, error)

    async def _tell(self, old: RealtimeAgent[Any], new: RealtimeAgent[Any]) -> None:
        context = self._room.context
        if self._room.hooks is not None:
            await self._room.hooks.on_handoff(context, old, new)
        if isinstance(new.hooks, AgentHooks):
            await new.hooks.on_handoff(context, new, old)
