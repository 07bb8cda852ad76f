import asyncio

from agents import (
    Agent,
    ApplyPatchTool,
    ApplyPatchToolCustomDataContext,
    CustomTool,
    CustomToolCustomDataContext,
    FunctionToolCustomDataContext,
    FunctionToolCustomDataExtractor,
    Runner,
    SQLiteSession,
    ToolCallOutputItem,
    function_tool,
)


def extract(data: FunctionToolCustomDataContext) -> dict:
    print(data.tool.name if hasattr(data, "tool") else "", data.output)
    return {"length": len(str(data.output))}


extractor: FunctionToolCustomDataExtractor = extract


@function_tool(custom_data_extractor=extractor)
def say(text: str) -> str:
    """Say."""
    return text * 2


async def main() -> None:
    session = SQLiteSession("s")
    agent = Agent(name="A", tools=[say], model="gpt-4.1")
    result = await Runner.run(agent, 'call say {"text": "ab"}', session=session)
    print([item.custom_data for item in result.new_items if isinstance(item, ToolCallOutputItem)])
    print(result.to_input_list())
    print(await session.get_items())
    print(
        [ApplyPatchToolCustomDataContext.__name__, CustomToolCustomDataContext.__name__],
        CustomTool.__name__,
        ApplyPatchTool.__name__,
    )


asyncio.run(main())
