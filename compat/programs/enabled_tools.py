import asyncio

from agents import Agent, RunContextWrapper, Runner, function_tool


@function_tool(is_enabled=lambda context, agent: context.context == "admin")
def reset() -> str:
    """Reset."""
    return "done"


agent = Agent(name="A", tools=[reset], model="gpt-4.1")


async def main() -> None:
    for user in ("admin", "guest"):
        print(
            len(await agent.get_all_tools(RunContextWrapper(user))),
            (await Runner.run(agent, "hello", context=user)).final_output,
        )


asyncio.run(main())
