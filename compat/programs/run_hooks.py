import asyncio

from agents import Agent, Runner, function_tool
from agents.lifecycle import RunHooks


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


class Hooks(RunHooks):
    async def on_agent_start(self, context, agent):
        print("start", agent.name)

    async def on_agent_end(self, context, agent, output):
        print("end", output)

    async def on_tool_start(self, context, agent, tool):
        print("tool", tool.name)

    async def on_tool_end(self, context, agent, tool, result):
        print("returned", result)

    async def on_llm_start(self, context, agent, system_prompt, input_items):
        print("llm", system_prompt, len(input_items))


agent = Agent(name="A", instructions="Hi.", tools=[weather], model="gpt-4.1")


async def main() -> None:
    await Runner.run(agent, 'call weather {"city": "Rome"}', hooks=Hooks())


asyncio.run(main())
