import asyncio

from agents import Agent, Runner
from pydantic import BaseModel


class Answer(BaseModel):
    city: str
    degrees: int
    tags: list[str]


agent = Agent(name="A", output_type=Answer, model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, "where?")
    print(result.final_output, result.final_output_as(Answer).degrees)


asyncio.run(main())
