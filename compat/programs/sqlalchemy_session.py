import asyncio

from agents import Agent, Runner
from agents.extensions.memory import SQLAlchemySession

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    session = SQLAlchemySession.from_url("ann", url="sqlite+aiosqlite:///chat.db", create_tables=True)
    await Runner.run(agent, "one", session=session)
    await Runner.run(agent, "two", session=session)
    print([item["role"] for item in await session.get_items()])
    await session.engine.dispose()


asyncio.run(main())
