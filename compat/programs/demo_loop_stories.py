"""`run_demo_loop` with handoffs, a failing tool, a nested agent and a limit of turns."""

import asyncio
import builtins

from agents import Agent, MaxTurnsExceeded, function_tool, run_demo_loop


@function_tool
def shout(text: str) -> str:
    """Shout."""
    if not text:
        raise ValueError("nothing to shout")
    return text.upper()


poet = Agent(name="Poet", model="gpt-4.1")
clown = Agent(name="Clown", model="gpt-4.1", tools=[shout, poet.as_tool("poem", "A poem.")])
agent = Agent(name="Host", model="gpt-4.1", handoffs=[clown])
LINES = [
    "Good evening",
    "call transfer_to_clown {}",
    'call shout {"text": "bravo"}',
    'call shout {"text": ""}',
    'call poem {"input": "a rose"}',
    "quit",
]


async def main() -> None:
    original = builtins.input
    try:
        for stream in (True, False):
            lines = iter(LINES)
            builtins.input = lambda prompt="": print(prompt, end="") or next(lines)
            await run_demo_loop(agent, stream=stream, context={"n": 1}, max_turns=4)
            print("--")
        lines = iter(["call transfer_to_clown {}", "exit"])
        try:
            await run_demo_loop(agent, stream=False, max_turns=1)
        except MaxTurnsExceeded as error:
            print(type(error).__name__, error)
    finally:
        builtins.input = original


asyncio.run(main())
