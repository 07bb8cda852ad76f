"""Hooks of the program, told of responses one after the other and never in the conversation's way."""

import asyncio
from typing import Any

from standfast.agents.context import AgentHookContext
from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.responses import TrackedResponse


class ResponseHookRunner:
    """Calls the run's hooks and the agent's at the beginning and the end of each response."""

    def __init__(self, ctx: SessionContext) -> None:
        self._ctx = ctx
        self._lock = asyncio.Lock()

    def on_response_started(self, response: TrackedResponse) -> None:
        if self._has_hooks(response):
            self._ctx.start_task(self._run_start_hooks(response), "start hooks")

    def on_response_ended(self, response: TrackedResponse, output: str) -> None:
        if self._has_hooks(response):
            self._ctx.start_task(self._run_end_hooks(response, output), "end hooks")

    def _has_hooks(self, response: TrackedResponse) -> bool:
        return self._ctx.hooks is not None or response.resolved_agent.agent.hooks is not None

    def _make_hook_context(self) -> AgentHookContext[Any]:
        context = self._ctx.run_context
        return AgentHookContext(context.context, context.usage, context.turn_input, context.approvals)

    async def _run_start_hooks(self, response: TrackedResponse) -> None:
        context, agent = self._make_hook_context(), response.resolved_agent.agent
        async with self._lock:
            if self._ctx.hooks is not None:
                await self._ctx.hooks.on_agent_start(context, agent)
            if agent.hooks is not None:
                await agent.hooks.on_start(context, agent)

    async def _run_end_hooks(self, response: TrackedResponse, output: Any) -> None:
        context, agent = self._make_hook_context(), response.resolved_agent.agent
        async with self._lock:
            if self._ctx.hooks is not None:
                await self._ctx.hooks.on_agent_end(context, agent, output)
            if agent.hooks is not None:
                await agent.hooks.on_end(context, agent, output)
