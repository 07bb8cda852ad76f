import asyncio
from typing import Any

from agents import (
    Agent,
    FunctionToolResult,
    ModelSettings,
    RunContextWrapper,
    Runner,
    ToolsToFinalOutputResult,
    function_tool,
)
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    conditions: str


@function_tool
def get_weather(city: str) -> Weather:
    return Weather(city=city, conditions="Sunny")


async def custom(context: RunContextWrapper[Any], results: list[FunctionToolResult]) -> ToolsToFinalOutputResult:
    weather: Weather = results[0].output
    return ToolsToFinalOutputResult(is_final_output=True, final_output=f"{weather.city} is {weather.conditions}.")


async def main() -> None:
    for behavior in ("run_llm_again", "stop_on_first_tool", custom):
        agent = Agent(
            name="Weather agent",
            instructions="You are a helpful agent.",
            tools=[get_weather],
            tool_use_behavior=behavior,
            model_settings=ModelSettings(tool_choice="required" if behavior != "run_llm_again" else None),
        )
        result = await Runner.run(agent, 'call get_weather {"city": "Tokyo"}')
        print(result.final_output)


asyncio.run(main())
