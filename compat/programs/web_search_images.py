import asyncio

from agents import Agent, Runner, WebSearchTool


async def main() -> None:
    for kinds in (["text"], ["image", "text"]):
        agent = Agent(name="A", tools=[WebSearchTool(search_content_types=kinds)], model="gpt-4.1")
        print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
