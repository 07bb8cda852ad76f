import asyncio

from agents import Agent, Runner
from agents.run_context import RunContextWrapper


def instruct(context: RunContextWrapper[dict[str, str]], agent: Agent[dict[str, str]]) -> str:
    return f"Talk to {context.context['name']}."


agent = Agent[dict[str, str]](name="A", instructions=instruct, model="gpt-4.1")


async def main() -> None:
    result = await Runner.run(agent, "hello", context={"name": "Ann"})
    print(result.final_output, result.context_wrapper.usage.requests)


asyncio.run(main())
