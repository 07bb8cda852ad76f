import asyncio

from agents import Agent, Runner, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    model = ScriptedModel([[function_call("weather", {"city": "Rome"}, call_id="c1")], [assistant_message("sunny")]])
    result = await Runner.run(Agent(name="A", tools=[weather], model=model), "x")
    print(result.final_output, len(model.calls))
    model.assert_complete()


asyncio.run(main())
