import asyncio

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
from openai import AsyncOpenAI
from pydantic import BaseModel


class Answer(BaseModel):
    text: str
    score: int


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    model = OpenAIChatCompletionsModel(model="m", openai_client=AsyncOpenAI())
    agent = Agent(
        name="A",
        instructions="Be brief.",
        tools=[add],
        model=model,
        model_settings=ModelSettings(
            temperature=0.5, tool_choice="auto", parallel_tool_calls=False, max_tokens=9, store=True
        ),
    )
    result = await Runner.run(agent, 'call add {"a": 1, "b": 2}')
    print(result.final_output, [item.type for item in result.new_items], result.context_wrapper.usage.total_tokens)
    print([item.get("type") or item["role"] for item in result.to_input_list()])
    structured = await Runner.run(Agent(name="B", model=model, output_type=Answer), "hello")
    print(structured.final_output)
    streamed = Runner.run_streamed(
        agent,
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "look"},
                    {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"},
                ],
            }
        ],
    )
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta)
    print(streamed.final_output, len(streamed.raw_responses))
    again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": "and now"}])
    print(again.final_output)


asyncio.run(main())
