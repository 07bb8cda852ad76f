import asyncio

from agents import Agent, ModelSettings, Runner
from agents.run import RunConfig

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    config = RunConfig(model="gpt-4o", model_settings=ModelSettings(temperature=0.1), workflow_name="w")
    print((await Runner.run(agent, "hello", run_config=config)).final_output)


asyncio.run(main())
