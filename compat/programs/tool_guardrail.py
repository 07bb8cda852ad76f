import asyncio

from agents import Agent, Runner, ToolGuardrailFunctionOutput, function_tool
from agents.decorators import tool_input_guardrail


@tool_input_guardrail
def check(data):
    if "Rome" in data.context.tool_arguments:
        return ToolGuardrailFunctionOutput.reject_content("not Rome")
    return ToolGuardrailFunctionOutput.allow()


@function_tool(tool_input_guardrails=[check])
def weather(city: str) -> str:
    """Weather."""
    return city


agent = Agent(name="A", tools=[weather], model="gpt-4.1")


async def main() -> None:
    for city in ("Rome", "Bari"):
        print((await Runner.run(agent, f'call weather {{"city": "{city}"}}')).final_output)


asyncio.run(main())
