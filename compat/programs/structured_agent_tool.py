import asyncio

from agents import Agent, Runner
from pydantic import BaseModel, Field


class Trip(BaseModel):
    """A journey."""

    place: str = Field(description="Where it ends.")
    days: int


class Stay(BaseModel):
    place: str = Field(description="Where it is.")
    extras: list[str]


def describe(options) -> str:
    return f"{options['params']} {options.get('summary')} {options.get('json_schema')}"


poet = Agent(name="Poet", model="gpt-4.1")
front = Agent(
    name="Front",
    tools=[
        poet.as_tool("plan", "Plans.", parameters=Trip, input_builder=describe),
        poet.as_tool("check", "Checks.", parameters=Trip, input_builder=describe, include_input_schema=True),
        poet.as_tool("book", "Bookings.", parameters=Stay),
    ],
    model="gpt-4.1",
)


async def main() -> None:
    for call in (
        'plan {"place": "Rome", "days": 3}',
        'check {"place": "Rome", "days": 3}',
        'book {"place": "Rome", "extras": ["sea"]}',
    ):
        print((await Runner.run(front, f"call {call}")).final_output)


asyncio.run(main())
