"""Hooks: methods that are called while agents run. Override those you need; the others do nothing."""

from typing import TYPE_CHECKING, Any, Generic

from standfast.agents.types import TContext
from standfast.base.items import Item

if TYPE_CHECKING:
    from standfast.agents.context import AgentHookContext, RunContextWrapper
    from standfast.agents.tools import Tool


class RunHooks(Generic[TContext]):
    """Hooks of a run, called for all its agents. An exception in a hook ends the run."""

    async def on_llm_start(
        self, context: "RunContextWrapper[TContext]", agent: Any, system_prompt: str | None, input_items: list[Item]
    ) -> None:
        """Called before a request to the model."""

    async def on_llm_end(self, context: "RunContextWrapper[TContext]", agent: Any, response: Any) -> None:
        """Called after the response of the model."""

    async def on_agent_start(self, context: "AgentHookContext[TContext]", agent: Any) -> None:
        """Called before an agent becomes active, including the first."""

    async def on_agent_end(self, context: "AgentHookContext[TContext]", agent: Any, output: Any) -> None:
        """Called after an agent has produced the final output."""

    async def on_handoff(self, context: "RunContextWrapper[TContext]", from_agent: Any, to_agent: Any) -> None:
        """Called when one agent hands off to another."""

    async def on_tool_start(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool") -> None:
        """Called before a local tool; ``context`` is its :class:`ToolContext`."""

    async def on_tool_end(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool", result: Any) -> None:
        """Called after a local tool has returned."""


class AgentHooks(Generic[TContext]):
    """Hooks of one agent, set as its ``hooks``. An exception in a hook ends the run."""

    async def on_start(self, context: "AgentHookContext[TContext]", agent: Any) -> None:
        """Called before the agent becomes active."""

    async def on_end(self, context: "AgentHookContext[TContext]", agent: Any, output: Any) -> None:
        """Called after the agent has produced the final output."""

    async def on_handoff(self, context: "RunContextWrapper[TContext]", agent: Any, source: Any) -> None:
        """Called when ``source`` hands off to this agent."""

    async def on_tool_start(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool") -> None:
        """Called before one of the agent's local tools."""

    async def on_tool_end(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool", result: Any) -> None:
        """Called after one of the agent's local tools has returned."""

    async def on_llm_start(
        self, context: "RunContextWrapper[TContext]", agent: Any, system_prompt: str | None, input_items: list[Item]
    ) -> None:
        """Called before a request to the agent's model."""

    async def on_llm_end(self, context: "RunContextWrapper[TContext]", agent: Any, response: Any) -> None:
        """Called after the response of the agent's model."""
