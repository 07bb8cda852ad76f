import asyncio

from agents import Agent, Runner
from agents.extensions.handoff_prompt import RECOMMENDED_PROMPT_PREFIX, prompt_with_handoff_instructions

agent = Agent(name="A", model="gpt-4.1")


async def main() -> None:
    text = prompt_with_handoff_instructions("Sell books.")
    print(text.startswith(RECOMMENDED_PROMPT_PREFIX), text.endswith("Sell books."))
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
