import asyncio

from agents import Agent, RunConfig, Runner, SessionSettings, SQLiteSession, function_tool
from agents.extensions.memory import AdvancedSQLiteSession, AsyncSQLiteSession


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    agent = Agent(name="A", tools=[add], model="gpt-4.1", instructions="Short.")
    session = SQLiteSession("s", "a.db", session_settings=SessionSettings(limit=2))
    await Runner.run(agent, "one", session=session)
    await Runner.run(agent, "two", session=session)
    print((await Runner.run(agent, 'call add {"a": 1, "b": 2}', session=session)).final_output)
    print(
        len(await session.get_items()),
        len(await session.get_items(limit=100)),
        [item.get("role") or item["type"] for item in await session.get_items(3)],
    )
    popped = await session.pop_item()
    print(popped["content"][0]["text"])
    popped = await session.pop_item()
    await session.add_items([{"role": "user", "content": "edited"}])
    result = await Runner.run(
        agent, "now", session=session, run_config=RunConfig(session_settings=SessionSettings(limit=4))
    )
    print(result.final_output)
    other = SQLiteSession("t", "a.db")
    print(await other.get_items(), other.session_id)
    await session.clear_session()
    print(await session.get_items(), await session.pop_item())
    second = AsyncSQLiteSession("s", "b.db")
    await Runner.run(agent, "hello", session=second)
    print(len(await second.get_items()))
    await second.close()
    advanced = AdvancedSQLiteSession(session_id="c", db_path="c.db", create_tables=True)
    result = await Runner.run(agent, 'call add {"a": 1, "b": 2}', session=advanced)
    await advanced.store_run_usage(result)
    print(
        await advanced.get_conversation_turns() and len(await advanced.get_conversation_turns()),
        await advanced.get_session_usage(),
    )
    print(await advanced.get_tool_usage())
    merged = await Runner.run(
        agent,
        [{"role": "user", "content": "list"}],
        session=other,
        run_config=RunConfig(session_input_callback=lambda history, new: history[-1:] + new),
    )
    print(merged.final_output)


asyncio.run(main())
