import asyncio
from typing import Annotated, Any

from agents import Agent, Runner, function_tool
from openai.types.responses import ResponseFunctionCallArgumentsDeltaEvent


@function_tool
def write_file(filename: Annotated[str, "Name of the file"], content: str) -> str:
    """Write a file."""
    return f"{filename}: {len(content)}"


async def main() -> None:
    agent = Agent(name="Coder", instructions="Write files.", tools=[write_file])
    result = Runner.run_streamed(agent, 'call write_file {"filename": "a.py", "content": "x = 1"}')
    calls: dict[Any, dict[str, Any]] = {}
    current = None
    async for event in result.stream_events():
        if event.type != "raw_response_event":
            continue
        if event.data.type == "response.output_item.added":
            if getattr(event.data.item, "type", None) == "function_call":
                current = event.data.item.call_id
                calls[current] = {"name": event.data.item.name, "arguments": ""}
        elif isinstance(event.data, ResponseFunctionCallArgumentsDeltaEvent) and current in calls:
            calls[current]["arguments"] += event.data.delta
        elif event.data.type == "response.output_item.done" and getattr(event.data.item, "call_id", None) in calls:
            print(calls[event.data.item.call_id])
            current = None
    print(result.final_output)


asyncio.run(main())
