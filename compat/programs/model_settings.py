import asyncio

from agents import Agent, ModelSettings, Runner

settings = ModelSettings(temperature=0.5, max_tokens=99, top_p=0.9, metadata={"a": "b"}, store=False, truncation="auto")
agent = Agent(name="A", model="gpt-4.1", model_settings=settings)


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
