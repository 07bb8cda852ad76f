import asyncio

from agents import Agent, OpenAIConversationsSession, Runner

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    session = OpenAIConversationsSession()
    print((await Runner.run(agent, "one", session=session)).final_output)
    print([item["role"] for item in await session.get_items()])
    print((await Runner.run(agent, "two", session=session)).final_output)


asyncio.run(main())
