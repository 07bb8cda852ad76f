import asyncio

from agents import Agent, AgentHooks, Runner


class Hooks(AgentHooks):
    async def on_start(self, context, agent):
        print("start", agent.name)

    async def on_end(self, context, agent, output):
        print("end", output)


agent = Agent(name="A", hooks=Hooks(), model="gpt-4.1")


async def main() -> None:
    await Runner.run(agent, "hello")


asyncio.run(main())
