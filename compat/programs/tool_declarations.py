import asyncio
import json
from typing import Annotated, Any, Literal

from agents import Agent, FunctionTool, RunContextWrapper, Runner, function_tool
from agents.function_schema import function_schema
from agents.tool_context import ToolContext
from pydantic import BaseModel, Field
from typing_extensions import TypedDict


class Address(BaseModel):
    street: str = Field(description="The street")
    number: int = 1


class Options(TypedDict, total=False):
    fast: bool


@function_tool
def google(city: str, days: int = 3, unit: Literal["c", "f"] = "c") -> str:
    """Forecast.

    Args:
        city: The city.
        days: How many days.
    """
    return f"{city} {days} {unit}"


@function_tool(docstring_style="numpy", name_override="np_tool", description_override="Other")
def numpy_style(values: list[float]) -> float:
    """Sum.

    Parameters
    ----------
    values : list
        The values.
    """
    return sum(values)


@function_tool(use_docstring_info=False, strict_mode=False)
def loose(data: dict[str, Any], options: Options | None = None, **rest: int) -> str:
    """Not shown."""
    return json.dumps({"data": data, "options": options, "rest": rest})


@function_tool
async def contexts(
    context: ToolContext[str], address: Address, note: Annotated[str, "A note"], size: Annotated[int, Field(gt=0, le=5)]
) -> str:
    """Use the context."""
    return f"{context.context} {context.tool_name} {address.street} {note} {size}"


class Greeter:
    @staticmethod
    @function_tool
    def greet(name: str) -> str:
        """Greet."""
        return f"hello {name}"


async def main() -> None:
    tools = [google, numpy_style, loose, contexts, Greeter.greet]
    for tool in tools:
        assert isinstance(tool, FunctionTool)
        print(tool.name, tool.description, json.dumps(tool.params_json_schema, sort_keys=True), tool.strict_json_schema)
    agent = Agent(name="A", tools=tools, model="gpt-4.1")
    for text in (
        'call google {"city": "Rome", "days": 2, "unit": "f"}',
        'call np_tool {"values": [1, 2.5]}',
        'call loose {"data": {"a": 1}, "rest": {"k": 3}}',
        'call contexts {"address": {"street": "S", "number": 2}, "note": "n", "size": 3}',
        'call greet {"name": "Ann"}',
    ):
        print((await Runner.run(agent, text, context="ctx")).final_output)

    def plain(context: RunContextWrapper[None], a: int, *rest: str) -> str:
        """Plain."""
        return ""

    schema = function_schema(plain)
    print(
        schema.name,
        schema.description,
        schema.takes_context,
        schema.strict_json_schema,
        sorted(schema.params_json_schema["properties"]),
    )
    parsed = schema.params_pydantic_model(a=1, rest=["x"])
    print(schema.to_call_args(parsed))


asyncio.run(main())
