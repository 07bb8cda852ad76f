import asyncio

from agents import Agent, Runner, ToolTimeoutError, function_tool


@function_tool(timeout=0.01)
async def slow() -> str:
    """Slow."""
    await asyncio.sleep(60)
    return "late"


@function_tool(timeout=0.01, timeout_behavior="raise_exception")
async def strict() -> str:
    """Slow."""
    await asyncio.sleep(60)
    return "late"


@function_tool(
    timeout=0.01, timeout_error_function=lambda context, error: f"{error.tool_name} took {error.timeout_seconds}"
)
async def worded() -> str:
    """Slow."""
    await asyncio.sleep(60)
    return "late"


async def main() -> None:
    agent = Agent(name="A", tools=[slow, strict, worded], model="gpt-4.1")
    print((await Runner.run(agent, "call slow {}")).new_items[1].output)
    print((await Runner.run(agent, "call worded {}")).final_output)
    try:
        await Runner.run(agent, "call strict {}")
    except ToolTimeoutError as error:
        print(type(error).__name__, error.tool_name, error.timeout_seconds)
    for bad in (0, -1, "x", float("nan")):
        try:
            function_tool(lambda: "x", name_override="n", timeout=bad)
            print("accepted", bad)
        except Exception as error:
            print(bad, isinstance(error, (ValueError, TypeError)))

    def sync() -> str:
        return "x"

    try:
        print(function_tool(sync, timeout=1.0).timeout_seconds)
    except Exception as error:
        print(type(error).__mro__[-4:-2], isinstance(error, ValueError))


asyncio.run(main())
