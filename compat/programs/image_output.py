import asyncio

from agents import Agent, Runner, ToolOutputImage, ToolOutputText, function_tool


@function_tool
def photo() -> list[ToolOutputImage | ToolOutputText]:
    """A photo."""
    return [ToolOutputText(text="here"), ToolOutputImage(image_url="data:image/png;base64,AAAA")]


agent = Agent(name="A", tools=[photo], model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "call photo {}")).final_output)


asyncio.run(main())
