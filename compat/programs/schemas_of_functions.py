"""What the model is told about functions: docstrings of three styles, annotations, defaults and overrides."""

import asyncio
import json
from enum import Enum
from typing import Annotated, Any, Literal

from agents import Agent, FunctionTool, RunContextWrapper, Runner, function_tool
from agents.function_schema import function_schema
from agents.tool_context import ToolContext
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Box(TypedDict):
    width: int
    label: str


class Shelf(BaseModel):
    """A shelf."""

    boxes: list[Box] = Field(description="The boxes", max_length=3)
    color: Color = Color.RED


@function_tool
def google(city: str, days: int = 3, units: Literal["c", "f"] = "c") -> str:
    """Forecast the weather.

    Over several lines.

    Args:
        city: The city to ask for.
        days: How many days.
    """
    return f"{city} {days} {units}"


@function_tool(docstring_style="numpy")
def numpy(values: list[float], weights: list[float] | None = None) -> float:
    """Add numbers.

    Parameters
    ----------
    values : list[float]
        The numbers.
    """
    return sum(values)


@function_tool(strict_mode=False)
def sphinx(shelf: Shelf, tags: dict[str, str], *more: int, **rest: Any) -> str:
    """Put boxes on a shelf.

    :param shelf: The shelf.
    :param tags: Free tags.
    """
    return f"{len(shelf.boxes)} {tags} {more} {rest}"


@function_tool(name_override="annotated_tool", description_override="Overridden.", use_docstring_info=False)
async def annotated(
    context: ToolContext[Any],
    age: Annotated[int, Field(ge=0, le=150, description="The age")],
    name: Annotated[str, "The name"] = "nobody",
    color: Color | None = None,
) -> str:
    """Not used."""
    return f"{context.tool_name} {age} {name} {color}"


def plain(wrapper: RunContextWrapper[int], first: int, second: str | None) -> str:
    """Plain.

    Args:
        first: The first.
    """
    return f"{first} {second}"


async def invoke(context: ToolContext[Any], arguments: str) -> str:
    return f"raw {json.loads(arguments)}"


raw = FunctionTool(
    name="raw",
    description="By hand.",
    params_json_schema={
        "type": "object",
        "properties": {"x": {"type": "integer"}},
        "required": ["x"],
        "additionalProperties": False,
    },
    on_invoke_tool=invoke,
)


async def main() -> None:
    for tool in (google, numpy, sphinx, annotated, raw):
        print(tool.name, "|", tool.description, "|", tool.strict_json_schema)
        print(json.dumps(tool.params_json_schema, sort_keys=True))
    schema = function_schema(plain)
    print(schema.name, schema.description, schema.takes_context, sorted(schema.params_json_schema["properties"]))
    parsed = schema.params_pydantic_model(first=1, second=None)
    print(schema.to_call_args(parsed))
    agent = Agent(name="A", model="gpt-4.1", tools=[google, numpy, sphinx, annotated, raw])
    for call in (
        'google {"city": "Rome", "days": 2, "units": "f"}',
        'numpy {"values": [1, 2.5], "weights": null}',
        'sphinx {"shelf": {"boxes": [{"width": 1, "label": "a"}]}, "tags": {"k": "v"}, "more": [1, 2], "rest": {"z": 1}}',
        'annotated_tool {"age": 5, "name": "Ann", "color": "blue"}',
        'raw {"x": 3}',
    ):
        print((await Runner.run(agent, f"call {call}")).final_output)


asyncio.run(main())
