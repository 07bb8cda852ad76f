"""Hooks: what a program can watch while agents run. Override what you need; the rest does nothing."""

from typing import TYPE_CHECKING, Any, Generic

from standfast.agents.types import TContext
from standfast.base.items import Item

if TYPE_CHECKING:
    from standfast.agents.context import AgentHookContext, RunContextWrapper
    from standfast.agents.tools import Tool


class RunHooks(Generic[TContext]):
    """Watches a whole run, whichever agent is at work. An exception in a hook ends the run."""

    async def on_llm_start(
        self, context: "RunContextWrapper[TContext]", agent: Any, system_prompt: str | None, input_items: list[Item]
    ) -> None:
        """Before the model is asked."""

    async def on_llm_end(self, context: "RunContextWrapper[TContext]", agent: Any, response: Any) -> None:
        """After the model has answered."""

    async def on_agent_start(self, context: "AgentHookContext[TContext]", agent: Any) -> None:
        """Before an agent takes over, the first one included."""

    async def on_agent_end(self, context: "AgentHookContext[TContext]", agent: Any, output: Any) -> None:
        """After an agent has produced the final output."""

    async def on_handoff(self, context: "RunContextWrapper[TContext]", from_agent: Any, to_agent: Any) -> None:
        """When one agent hands over to another."""

    async def on_tool_start(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool") -> None:
        """Before a local tool is called; ``context`` is its :class:`ToolContext`."""

    async def on_tool_end(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool", result: Any) -> None:
        """After a local tool has returned."""


class AgentHooks(Generic[TContext]):
    """Watches one agent: set it as the agent's ``hooks``. An exception in a hook ends the run."""

    async def on_start(self, context: "AgentHookContext[TContext]", agent: Any) -> None:
        """Before the agent takes over."""

    async def on_end(self, context: "AgentHookContext[TContext]", agent: Any, output: Any) -> None:
        """After the agent has produced the final output."""

    async def on_handoff(self, context: "RunContextWrapper[TContext]", agent: Any, source: Any) -> None:
        """When ``source`` hands over to this agent."""

    async def on_tool_start(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool") -> None:
        """Before one of its local tools is called."""

    async def on_tool_end(self, context: "RunContextWrapper[TContext]", agent: Any, tool: "Tool", result: Any) -> None:
        """After one of its local tools has returned."""

    async def on_llm_start(
        self, context: "RunContextWrapper[TContext]", agent: Any, system_prompt: str | None, input_items: list[Item]
    ) -> None:
        """Before its model is asked."""

    async def on_llm_end(self, context: "RunContextWrapper[TContext]", agent: Any, response: Any) -> None:
        """After its model has answered."""
