"""Agents as tools with structured input, an input builder, a filter of outputs and their own sessions."""

import asyncio

from agents import Agent, AgentToolStreamEvent, RunConfig, Runner, SQLiteSession, function_tool
from pydantic import BaseModel, Field


class Order(BaseModel):
    """What to translate."""

    text: str = Field(description="The text")
    language: str = Field(default="French", description="Into which language")


class Result(BaseModel):
    words: list[str]


@function_tool
def count(text: str) -> int:
    """Count words."""
    return len(text.split())


def build_input(options):
    print("builder", options["params"], options["summary"] is not None, options["json_schema"] is not None)
    return f"{options['params']['language']}: {options['params']['text']}"


async def show(event: AgentToolStreamEvent) -> None:
    if event["event"].type == "run_item_stream_event":
        print("event", event["agent"].name, event["event"].name)


async def first_word(result) -> str:
    return str(result.final_output).split()[0]


translator = Agent(name="Translator", instructions="Translate.", model="gpt-4.1", tools=[count])
lister = Agent(name="Lister", instructions="List.", model="gpt-4.1", output_type=Result)
memory = SQLiteSession("translator")
boss = Agent(
    name="Boss",
    model="gpt-4.1",
    tools=[
        translator.as_tool("plain", "Translate.", session=memory),
        translator.as_tool("built", "Translate.", parameters=Order, input_builder=build_input, on_stream=show),
        lister.as_tool("listed", "List.", custom_output_extractor=first_word, run_config=RunConfig(workflow_name="L")),
        translator.as_tool(
            "failing", "Fail.", max_turns=0, failure_error_function=lambda context, error: type(error).__name__
        ),
    ],
)


async def main() -> None:
    for call in (
        'plain {"input": "one"}',
        'plain {"input": "call count {\\"text\\": \\"a b\\"}"}',
        'built {"text": "good day", "language": "Dutch"}',
        'listed {"input": "things"}',
    ):
        result = await Runner.run(boss, f"call {call}")
        print(result.final_output, result.context_wrapper.usage.requests)
    print([item.get("type", item.get("role")) for item in await memory.get_items()])
    streamed = Runner.run_streamed(boss, 'call built {"text": "x", "language": "y"}')
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name, event.item.agent.name)
    print(streamed.final_output)


asyncio.run(main())
