"""Schemas of functions with docstrings of several styles and types of several kinds, and what calls of them return."""

import asyncio
import enum
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agents import Agent, RunContextWrapper, Runner, function_tool
from agents.tool_context import ToolContext


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(TypedDict):
    x: int
    y: int


class Part(BaseModel):
    """A part."""

    size: int = Field(description="Its size.", ge=0)
    points: list[Point] | None = None


@dataclass
class Order:
    number: int
    tags: list[str]


@function_tool
def paint(
    context: RunContextWrapper[Any],
    text: str,
    count: int = 5,
    colour: Colour = Colour.RED,
    side: Literal["a", "b"] = "a",
) -> str:
    """Paint a text.

    It is written in
    several lines.

    Args:
        text: What is painted,
            as often as needed.
        count (int): How often.

    Returns:
        A sentence.
    """
    return f"{text} {count} {colour} {side}"


@function_tool
def build(point: Point, part: Part, order: Order, parts: list[Part]) -> str:
    """Build something.

    :param point: Where.
    :param part: Of what.
    :returns: A sentence.
    """
    return f"{point} {part} {order} {parts}"


@function_tool
def measure(
    length: int, width: Annotated[int, Field(gt=3, description="More than 3.")], unit: Annotated[str, "A unit."] = "m"
):
    """Measure something.

    Parameters
    ----------
    length : int
        How long it is.
    width : int
        How wide it is.
    """
    return (length * width, unit)


@function_tool(name_override="other", description_override="Another.", strict_mode=False)
def loose(first: int, table: dict[str, int] = {}, *rest: int, **named: str) -> Any:  # noqa: B006
    return {"first": first, "table": table, "rest": rest, "named": named}


@function_tool
def identify(context: ToolContext[Any]) -> str:
    return f"{context.tool_name} {context.tool_call_id} {context.context} {context.agent.name}"


@function_tool
def nothing() -> None:
    """Return nothing."""


CALLS = [
    (paint, {"text": "hi", "count": 1, "colour": "blue", "side": "b"}),
    (
        build,
        {
            "point": {"x": 1, "y": 2},
            "part": {"size": 1, "points": None},
            "order": {"number": 1, "tags": ["t"]},
            "parts": [],
        },
    ),
    (measure, {"length": 2, "width": 5, "unit": "km"}),
    (loose, {"first": 1, "table": {"k": 2}, "rest": [1, 2], "named": {"q": "r"}}),
    (identify, {}),
    (nothing, {}),
]


async def main():
    for tool, _ in CALLS:
        print(tool.name, tool.description, tool.strict_json_schema, json.dumps(tool.params_json_schema))
    agent = Agent(name="painter", tools=[tool for tool, _ in CALLS])
    for tool, arguments in CALLS:
        text = json.dumps(arguments)
        context = ToolContext(context="ann", tool_name=tool.name, tool_call_id="c", tool_arguments=text, agent=agent)
        print(repr(await tool.on_invoke_tool(context, text)))
    result = await Runner.run(agent, 'call measure {"length": 2, "width": 5, "unit": "km"}')
    print(result.final_output, [item.output for item in result.new_items if item.type == "tool_call_output_item"])


asyncio.run(main())
