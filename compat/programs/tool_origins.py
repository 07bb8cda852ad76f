import asyncio

from agents import Agent, Runner, ToolErrorFormatterArgs, RunConfig, function_tool
from agents import ToolOutputImage, ToolOutputText, ToolOutputFileContent
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
def picture() -> ToolOutputImage:
    """A picture."""
    return ToolOutputImage(image_url="data:image/png;base64,AAAA", detail="low")


@function_tool
def both() -> list:
    """Text and a file."""
    return [ToolOutputText(text="see"), ToolOutputFileContent(file_data="QUJD", filename="a.txt")]


@function_tool
def broken() -> str:
    """Break."""
    raise ValueError("secret")


@function_tool(failure_error_function=lambda context, error: f"failed with {type(error).__name__}")
def polite() -> str:
    """Break politely."""
    raise KeyError("x")


def explain(arguments: ToolErrorFormatterArgs) -> str | None:
    print("formatter:", arguments.kind, arguments.tool_name, arguments.call_id)
    return None


async def main() -> None:
    tools = [picture, both, broken, polite]
    calls = [function_call(tool.name, {}, call_id=tool.name) for tool in tools]
    model = ScriptedModel([calls, [assistant_message("done")]])
    agent = Agent(name="A", model=model, tools=tools)
    result = await Runner.run(agent, "go", run_config=RunConfig(tool_error_formatter=explain))
    for item in result.new_items:
        origin = getattr(item, "tool_origin", None)
        print(item.type, getattr(item, "output", None), getattr(item, "description", None), origin and origin.type)
    for item in model.calls[1].input[-4:]:
        print(item)


asyncio.run(main())
