import asyncio

from agents import Agent, Runner, function_tool


def explain(context, error):
    return f"sorry: {error}"


@function_tool(failure_error_function=explain)
def broken(n: int) -> str:
    """Fails."""
    raise RuntimeError("boom")


agent = Agent(name="A", tools=[broken], model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, 'call broken {"n": 1}')).final_output)


asyncio.run(main())
