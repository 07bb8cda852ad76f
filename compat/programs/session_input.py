import asyncio

from agents import Agent, RunConfig, Runner, SQLiteSession


def keep_last(history, new):
    return history[-1:] + new


agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    session = SQLiteSession("ann")
    await Runner.run(agent, "one", session=session)
    print(
        (
            await Runner.run(agent, "two", session=session, run_config=RunConfig(session_input_callback=keep_last))
        ).final_output
    )
    session.close()


asyncio.run(main())
