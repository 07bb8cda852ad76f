import asyncio

from agents import Agent, CodeInterpreterTool, FileSearchTool, ImageGenerationTool, Runner, WebSearchTool

tools = [
    WebSearchTool(search_context_size="low"),
    FileSearchTool(vector_store_ids=["vs_1"], max_num_results=3),
    CodeInterpreterTool(tool_config={"type": "code_interpreter", "container": {"type": "auto"}}),
    ImageGenerationTool(tool_config={"type": "image_generation", "quality": "low"}),
]
agent = Agent(name="A", tools=tools, model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)


asyncio.run(main())
