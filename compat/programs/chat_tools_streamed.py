import asyncio

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from agents import set_default_openai_api
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from pydantic import BaseModel


class Answer(BaseModel):
    text: str
    score: int


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    model = OpenAIChatCompletionsModel(model="gpt-4.1", openai_client=AsyncOpenAI())
    agent = Agent(name="A", model=model, tools=[add], model_settings=ModelSettings(temperature=0.2, max_tokens=9))
    streamed = Runner.run_streamed(agent, 'call add {"a": 1, "b": 2}')
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            print("delta", event.data.delta)
        elif event.type == "run_item_stream_event":
            print(event.name, type(event.item.raw_item).__name__)
    print(streamed.final_output, streamed.context_wrapper.usage.total_tokens)
    typed = Agent(name="T", model=model, output_type=Answer)
    print((await Runner.run(typed, "hello")).final_output)
    set_default_openai_api("chat_completions")
    plain = Agent(name="P", model="gpt-4.1-mini")
    result = await Runner.run(plain, "hi", run_config=RunConfig(model_settings=ModelSettings(top_p=0.5)))
    print(result.final_output, result.raw_responses[0].usage.input_tokens)
    set_default_openai_api("responses")


asyncio.run(main())
