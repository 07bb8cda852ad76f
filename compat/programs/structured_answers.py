"""Answers of many types, and what a program sees when an answer does not fit."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Literal

from agents import Agent, AgentOutputSchema, ModelBehaviorError, Runner, UserError
from agents.testing import ScriptedModel, assistant_message
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


class Step(BaseModel):
    title: str = Field(description="What to do", max_length=20)
    minutes: Annotated[int, Field(ge=1)]


class Plan(BaseModel):
    """A plan."""

    mood: Mood
    kind: Literal["short", "long"]
    steps: list[Step]
    note: str | None = None


class Point(TypedDict):
    x: int
    y: float


@dataclass
class Address:
    city: str
    lines: list[str] = field(default_factory=list)


class Free(BaseModel):
    anything: dict[str, int]


async def main() -> None:
    for kind in (Plan, Point, Address, list[Step], int, str | None, Literal["a", "b"]):
        agent = Agent(name="Planner", model="gpt-4.1", output_type=kind)
        try:
            result = await Runner.run(agent, "Plan my day.")
            print(type(result.final_output).__name__, result.final_output)
        except Exception as error:
            print(type(error).__name__, str(error)[:60])
    result = await Runner.run(Agent(name="P", model="gpt-4.1", output_type=Plan), "Go.")
    print(result.final_output_as(Plan).steps[0].title)
    try:
        result.final_output_as(Step, raise_if_incorrect_type=True)
    except TypeError as error:
        print(type(error).__name__, error)
    for kind in (Free, dict[str, int]):
        try:
            Runner.run_sync
            await Runner.run(Agent(name="F", model="gpt-4.1", output_type=kind), "x")
        except UserError:
            print("not strict", AgentOutputSchema(kind, strict_json_schema=False).is_strict_json_schema())
    for text in ("no json", '{"mood": "ugly"}', '{"title": "x", "minutes": 0}', '{"title": "x", "minutes": "5"}'):
        agent = Agent(name="P", output_type=Step, model=ScriptedModel([[assistant_message(text)]]))
        try:
            print((await Runner.run(agent, "x")).final_output)
        except ModelBehaviorError as error:
            print(type(error).__name__)
    schema = AgentOutputSchema(Plan)
    print(schema.name(), schema.is_plain_text(), sorted(schema.json_schema()["properties"]))
    print(schema.validate_json('{"mood": "good", "kind": "short", "steps": [], "note": null}'))


asyncio.run(main())
