import asyncio

from agents import Agent, FunctionTool, Runner


async def invoke(context, arguments: str) -> str:
    return f"got {arguments}"


schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
tool = FunctionTool(name="count", description="Counts.", params_json_schema=schema, on_invoke_tool=invoke)
agent = Agent(name="A", tools=[tool], model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, 'call count {"n": 1}')).final_output)


asyncio.run(main())
