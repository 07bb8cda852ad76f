import asyncio

from agents import Agent, Runner, trace
from pydantic import BaseModel


class OutlineCheck(BaseModel):
    good_quality: bool
    is_scifi: bool


outline_agent = Agent(name="outline", instructions="Write an outline.")
checker = Agent(name="checker", instructions="Judge the outline.", output_type=OutlineCheck)
writer = Agent(name="writer", instructions="Write a story.", output_type=str)


async def main() -> None:
    with trace("Deterministic story flow"):
        outline = await Runner.run(outline_agent, "A robot learns to paint.")
        print(outline.final_output)
        check = await Runner.run(checker, outline.final_output)
        assert isinstance(check.final_output, OutlineCheck)
        if not check.final_output.good_quality:
            return
        story = await Runner.run(writer, outline.final_output)
        print(story.final_output)


asyncio.run(main())
