import asyncio
import builtins

from agents import Agent, function_tool, run_demo_loop


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def read(lines):
    remaining = iter(lines)

    def ask(prompt=""):
        print(prompt, end="")
        return next(remaining)

    return ask


def end(prompt=""):
    raise EOFError


other = Agent(name="Other", model="gpt-4.1")
agent = Agent(name="A", model="gpt-4.1", tools=[add], handoffs=[other])


async def main() -> None:
    for stream in (False, True):
        lines = ["hello", "", 'call add {"a": 1, "b": 2}', "call transfer_to_other {}", "again", "exit"]
        builtins.input = read(lines)
        await run_demo_loop(agent, stream=stream)
    builtins.input = end
    await run_demo_loop(agent, stream=False, context={"x": 1})


original = builtins.input
try:
    asyncio.run(main())
finally:
    builtins.input = original
