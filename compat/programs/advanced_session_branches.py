import asyncio

from agents import Agent, Runner, function_tool
from agents.extensions.memory import AdvancedSQLiteSession


@function_tool
def get_weather(city: str) -> str:
    """The weather."""
    return f"{city} is sunny."


async def main() -> None:
    agent = Agent(name="Assistant", instructions="Reply concisely.", tools=[get_weather])
    session = AdvancedSQLiteSession(session_id="conversation", create_tables=True)
    for text in ("What city?", 'call get_weather {"city": "SF"}', "Population?"):
        result = await Runner.run(agent, text, session=session)
        await session.store_run_usage(result)
        print(result.final_output)
    usage = await session.get_session_usage()
    print(usage["requests"], usage["total_turns"])
    print([(turn["user_turn_number"], turn["requests"]) for turn in await session.get_turn_usage()])
    branch = await session.create_branch_from_turn(2, "other")
    result = await Runner.run(agent, "What about NY?", session=session)
    print(branch, result.final_output, len(await session.get_items()))
    print(
        sorted((each["branch_id"], each["message_count"], each["is_current"]) for each in await session.list_branches())
    )
    await session.switch_to_branch("main")
    print(len(await session.get_items()), await session.get_tool_usage())
    print([turn["turn"] for turn in await session.find_turns_by_content("Population")])


asyncio.run(main())
