import asyncio

from agents import Agent, Runner, SQLiteSession
from agents.extensions.memory import EncryptedSession

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    under = SQLiteSession("ann", "chat.db")
    session = EncryptedSession(session_id="ann", underlying_session=under, encryption_key="a-long-secret-key-for-tests")
    await Runner.run(agent, "one", session=session)
    print([item["role"] for item in await session.get_items()])
    under.close()


asyncio.run(main())
