import asyncio
from typing import Any

from agents import Agent, AgentHookContext, RunContextWrapper, RunHooks, Runner, Tool, function_tool
from agents.items import ModelResponse, TResponseInputItem


class Hooks(RunHooks):
    def __init__(self) -> None:
        self.count = 0

    def note(self, text: str) -> None:
        self.count += 1
        print(self.count, text)

    async def on_agent_start(self, context: AgentHookContext, agent: Agent) -> None:
        self.note(f"start {agent.name}")

    async def on_llm_start(
        self, context: RunContextWrapper, agent: Agent, system_prompt: str | None, items: list[TResponseInputItem]
    ) -> None:
        self.note(f"llm start {system_prompt} {len(items)}")

    async def on_llm_end(self, context: RunContextWrapper, agent: Agent, response: ModelResponse) -> None:
        self.note(f"llm end {len(response.output)} {context.usage.requests}")

    async def on_agent_end(self, context: AgentHookContext, agent: Agent, output: Any) -> None:
        self.note(f"end {agent.name} {output}")

    async def on_tool_start(self, context: RunContextWrapper, agent: Agent, tool: Tool) -> None:
        self.note(f"tool {tool.name} {context.tool_name} {context.tool_call_id}")

    async def on_tool_end(self, context: RunContextWrapper, agent: Agent, tool: Tool, result: str) -> None:
        self.note(f"tool end {tool.name} {result}")

    async def on_handoff(self, context: RunContextWrapper, from_agent: Agent, to_agent: Agent) -> None:
        self.note(f"handoff {from_agent.name} {to_agent.name}")


@function_tool
def multiply_by_two(x: int) -> int:
    """Return x times two."""
    return x * 2


multiply = Agent(name="Multiply", instructions="Multiply.", tools=[multiply_by_two])
start = Agent(name="Start", instructions="Start.", tools=[multiply_by_two], handoffs=[multiply])


async def main() -> None:
    await Runner.run(start, 'call multiply_by_two {"x": 4}', hooks=Hooks())
    await Runner.run(start, "call transfer_to_multiply {}", hooks=Hooks())


asyncio.run(main())
