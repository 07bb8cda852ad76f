import asyncio

from agents import (
    Agent,
    Runner,
    ToolOutputFileContent,
    ToolOutputFileContentDict,
    ToolOutputImage,
    ToolOutputImageDict,
    ToolOutputText,
    ToolOutputTextDict,
    function_tool,
)
from pydantic import BaseModel


class Point(BaseModel):
    x: int


@function_tool
def text() -> ToolOutputText:
    """T."""
    return ToolOutputText(text="hello")


@function_tool
def text_dict() -> ToolOutputTextDict:
    """T."""
    return {"type": "text", "text": "hello"}


@function_tool
def image() -> ToolOutputImage:
    """I."""
    return ToolOutputImage(image_url="data:image/png;base64,aGk=", detail="low")


@function_tool
def image_dict() -> ToolOutputImageDict:
    """I."""
    return {"type": "image", "file_id": "file_1"}


@function_tool
def file() -> ToolOutputFileContent:
    """F."""
    return ToolOutputFileContent(file_data="aGk=", filename="a.txt")


@function_tool
def file_dict() -> ToolOutputFileContentDict:
    """F."""
    return {"type": "file", "file_url": "http://127.0.0.1/a.pdf"}


@function_tool
def several() -> list[ToolOutputText | ToolOutputImage]:
    """S."""
    return [ToolOutputText(text="a"), ToolOutputImage(file_id="f")]


@function_tool
def model() -> Point:
    """M."""
    return Point(x=1)


@function_tool
def nothing() -> None:
    """N."""


@function_tool
def mapping() -> dict[str, list[int]]:
    """D."""
    return {"a": [1, 2]}


@function_tool
def empty() -> list[str]:
    """E."""
    return []


@function_tool
def flag() -> bool:
    """B."""
    return True


TOOLS = [text, text_dict, image, image_dict, file, file_dict, several, model, nothing, mapping, empty, flag]


async def main() -> None:
    agent = Agent(name="A", tools=TOOLS, model="gpt-4.1")
    for tool in TOOLS:
        result = await Runner.run(agent, f"call {tool.name} {{}}")
        print(tool.name, repr(result.new_items[1].output), result.new_items[1].raw_item)


asyncio.run(main())
