import asyncio
from dataclasses import dataclass

from agents import Agent, ModelBehaviorError, ProgrammaticToolCallingTool, Runner, UserError, function_tool
from pydantic import BaseModel


class Sum(BaseModel):
    value: int


@dataclass
class Product:
    value: int


@function_tool(allowed_callers=["programmatic"])
def add(a: int, b: int) -> Sum:
    """Add."""
    return Sum(value=a + b)


@function_tool(allowed_callers=["direct", "programmatic"])
def multiply(a: int, b: int) -> Product:
    """Multiply."""
    return Product(a * b)


agent = Agent(name="A", tools=[ProgrammaticToolCallingTool(), add, multiply], model="gpt-4.1")


async def main() -> None:
    print(add.output_json_schema, multiply.output_json_schema)
    print((await Runner.run(agent, 'call multiply {"a": 2, "b": 3}')).final_output)
    try:
        await Runner.run(agent, 'call add {"a": 2, "b": 3}')
    except ModelBehaviorError:
        print("not by the model itself")
    try:
        function_tool(lambda: 7, name_override="seven", allowed_callers=["programmatic"])
        print("not annotated")

        @function_tool(allowed_callers=["programmatic"])
        def seven() -> int:
            return 7
    except UserError:
        print("not an object")


asyncio.run(main())
