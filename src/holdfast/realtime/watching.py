"""Hooks of the program, told of responses one after the other and never in the conversation's way."""

import asyncio
from typing import Any

from holdfast.agents.context import AgentHookContext
from holdfast.realtime.responses import Response
from holdfast.realtime.room import Room


class Watching:
    """Calls the run's hooks and the agent's at the beginning and the end of each response."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._turn = asyncio.Lock()

    def began(self, response: Response) -> None:
        if self._watchers(response):
            self._room.start(self._tell_begin(response), "start hooks")

    def ended(self, response: Response, output: str) -> None:
        if self._watchers(response):
            self._room.start(self._tell_end(response, output), "end hooks")

    def _watchers(self, response: Response) -> bool:
        return self._room.hooks is not None or response.snapshot.agent.hooks is not None

    def _context(self) -> AgentHookContext[Any]:
        context = self._room.context
        return AgentHookContext(context.context, context.usage, context.turn_input, context.approvals)

    async def _tell_begin(self, response: Response) -> None:
        context, agent = self._context(), response.snapshot.agent
        async with self._turn:
            if self._room.hooks is not None:
                await self._room.hooks.on_agent_start(context, agent)
            if agent.hooks is not None:
                await agent.hooks.on_start(context, agent)

    async def _tell_end(self, response: Response, output: Any) -> None:
        context, agent = self._context(), response.snapshot.agent
        async with self._turn:
            if self._room.hooks is not None:
                await self._room.hooks.on_agent_end(context, agent, output)
            if agent.hooks is not None:
                await agent.hooks.on_end(context, agent, output)
