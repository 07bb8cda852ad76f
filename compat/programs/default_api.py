import asyncio

from agents import Agent, Runner, set_default_openai_api

set_default_openai_api("chat_completions")


async def main() -> None:
    print((await Runner.run(Agent(name="A", model="gpt-4.1"), "hello")).final_output)
    set_default_openai_api("responses")
    print((await Runner.run(Agent(name="A", model="gpt-4.1"), "hello")).final_output)


asyncio.run(main())
