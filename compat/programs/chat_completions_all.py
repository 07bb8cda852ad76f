"""The Chat Completions API: tools, handoffs, structured answers, streaming, images and settings."""

import asyncio

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    set_default_openai_api,
)
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel


class Answer(BaseModel):
    words: list[str]
    sure: bool


@function_tool
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: Another.
    """
    return a + b


async def main() -> None:
    model = OpenAIChatCompletionsModel(model="gpt-4o", openai_client=AsyncOpenAI())
    math = Agent(name="Math", instructions="Add.", tools=[add], model=model)
    front = Agent(
        name="Front",
        instructions="Front.",
        model=model,
        handoffs=[math],
        model_settings=ModelSettings(
            temperature=0.1,
            max_tokens=50,
            parallel_tool_calls=True,
            tool_choice="auto",
            frequency_penalty=0.5,
            store=True,
        ),
    )
    session = SQLiteSession("chat")
    for text in ("call transfer_to_math {}", 'call add {"a": 1, "b": 2} and call add {"a": 3, "b": 4}'):
        result = await Runner.run(math if "add" in text else front, text, session=session)
        print(result.final_output, [item.type for item in result.new_items], result.context_wrapper.usage.total_tokens)
    print([item.get("type", item.get("role")) for item in await session.get_items()])
    streamed = Runner.run_streamed(math, 'call add {"a": 5, "b": 6}')
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            print(event.data.delta)
        elif event.type == "run_item_stream_event":
            print(event.name)
    typed = Agent(name="Typed", model=model, output_type=Answer)
    print((await Runner.run(typed, "x")).final_output)
    picture = [
        {
            "role": "user",
            "content": [
                {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"},
                {"type": "input_text", "text": "What is it?"},
            ],
        }
    ]
    print((await Runner.run(Agent(name="Eye", model=model), picture)).final_output)
    set_default_openai_api("chat_completions")
    print(
        (
            await Runner.run(Agent(name="Default", model="gpt-4o"), "hi", run_config=RunConfig(tracing_disabled=True))
        ).final_output
    )
    set_default_openai_api("responses")


asyncio.run(main())
