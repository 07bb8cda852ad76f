import asyncio

from agents import Agent, Runner
from agents.run import AgentRunner, set_default_agent_runner


class Loud(AgentRunner):
    async def run(self, starting_agent, input, **kwargs):
        print("running", starting_agent.name)
        return await super().run(starting_agent, input, **kwargs)


set_default_agent_runner(Loud())
agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)
    set_default_agent_runner(None)


asyncio.run(main())
