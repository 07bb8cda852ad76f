import asyncio

from agents import Agent, AgentHooks, RunHooks, Runner, Tool, function_tool, handoff


class Log(RunHooks):
    async def on_agent_start(self, context, agent):
        print("run: start", agent.name, context.usage.requests, context.turn_input)

    async def on_agent_end(self, context, agent, output):
        print("run: end", agent.name, output)

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        print("run: ask", agent.name, system_prompt, len(input_items))

    async def on_llm_end(self, context, agent, response):
        print(
            "run: answer",
            agent.name,
            len(response.output),
            response.usage.total_tokens,
            response.response_id is not None,
        )

    async def on_tool_start(self, context, agent, tool: Tool):
        print("run: tool", agent.name, tool.name, context.tool_call_id, context.tool_arguments, context.tool_name)

    async def on_tool_end(self, context, agent, tool, result):
        print("run: result", tool.name, result)

    async def on_handoff(self, context, from_agent, to_agent):
        print("run: handoff", from_agent.name, to_agent.name)


class Own(AgentHooks):
    def __init__(self, label):
        self.label = label

    async def on_start(self, context, agent):
        print(self.label, "start", agent.name)

    async def on_end(self, context, agent, output):
        print(self.label, "end", output)

    async def on_tool_start(self, context, agent, tool):
        print(self.label, "tool", tool.name)

    async def on_tool_end(self, context, agent, tool, result):
        print(self.label, "result", result)

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        print(self.label, "ask")

    async def on_llm_end(self, context, agent, response):
        print(self.label, "answer")


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


other = Agent(name="Other", instructions="o", model="gpt-4.1", hooks=Own("other"))
agent = Agent(
    name="A",
    instructions="a",
    model="gpt-4.1",
    tools=[add],
    handoffs=[handoff(other, on_handoff=lambda context: print("callback"))],
    hooks=Own("a"),
)


async def main() -> None:
    await Runner.run(agent, 'call add {"a": 1, "b": 2}', hooks=Log())
    await Runner.run(agent, "call transfer_to_other {}", hooks=Log())


asyncio.run(main())
