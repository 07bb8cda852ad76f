import asyncio
from dataclasses import dataclass
from typing import Literal

from agents import Agent, RunContextWrapper, Runner


@dataclass
class Style:
    style: Literal["haiku", "pirate", "robot"]


def instructions(context: RunContextWrapper[Style], agent: Agent[Style]) -> str:
    return f"{agent.name}: speak as a {context.context.style}."


async def main() -> None:
    agent = Agent(name="Chat agent", instructions=instructions)
    for style in ("haiku", "pirate", "robot"):
        result = await Runner.run(agent, "Tell me a joke.", context=Style(style=style))
        print(style, result.final_output)


asyncio.run(main())
