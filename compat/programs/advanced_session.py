import asyncio

from agents import Agent, Runner
from agents.extensions.memory.advanced_sqlite_session import AdvancedSQLiteSession

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    session = AdvancedSQLiteSession(session_id="ann", create_tables=True)
    result = await Runner.run(agent, "one", session=session)
    await session.store_run_usage(result)
    print(len(await session.get_items()), [branch["branch_id"] for branch in await session.list_branches()])
    session.close()


asyncio.run(main())
