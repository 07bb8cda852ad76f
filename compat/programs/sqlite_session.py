import asyncio

from agents import Agent, Runner, SQLiteSession

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    session = SQLiteSession("ann", "chat.db")
    await Runner.run(agent, "one", session=session)
    await Runner.run(agent, "two", session=session)
    print([item["role"] for item in await session.get_items()])
    print((await session.pop_item())["role"], len(await session.get_items(limit=2)))
    await session.clear_session()
    print(await session.get_items())
    session.close()


asyncio.run(main())
