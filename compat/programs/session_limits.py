import asyncio

from agents import Agent, RunConfig, Runner, SessionSettings, SQLiteSession


async def main() -> None:
    agent = Agent(name="Assistant", instructions="Reply very concisely.")
    session = SQLiteSession("conversation", session_settings=SessionSettings(limit=4))
    for text in ("What city is the Golden Gate Bridge in?", "What state is it in?", "How many people live there?"):
        print((await Runner.run(agent, text, session=session)).final_output)
    print(len(await session.get_items()), len(await session.get_items(limit=2)))
    result = await Runner.run(
        agent, "Last?", session=session, run_config=RunConfig(session_settings=SessionSettings(limit=1))
    )
    print(result.final_output)
    print((await session.pop_item())["role"], len(await session.get_items(limit=100)))
    await session.clear_session()
    print(await session.get_items())


asyncio.run(main())
