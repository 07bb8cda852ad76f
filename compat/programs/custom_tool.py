import asyncio

from agents import Agent, CustomTool, Runner


async def run_sql(context, text: str) -> str:
    return f"rows for {text}"


agent = Agent(
    name="A", tools=[CustomTool(name="sql", description="Runs SQL.", on_invoke_tool=run_sql)], model="gpt-4.1"
)


async def main() -> None:
    print((await Runner.run(agent, 'do custom_tool_call {"name": "sql", "input": "select 1"}')).final_output)


asyncio.run(main())
