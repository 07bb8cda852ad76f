import asyncio
import os

from agents import Agent, ModelSettings, RunConfig, Runner, function_tool
from agents.extensions.models.litellm_model import LitellmModel
from agents.extensions.models.litellm_provider import LitellmProvider
from pydantic import BaseModel


class Weather(BaseModel):
    city: str
    degrees: int


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    url = os.environ["OPENAI_BASE_URL"]
    model = LitellmModel(model="openai/gpt-4.1", base_url=url, api_key="key")
    agent = Agent(
        name="Assistant",
        instructions="You only respond in haikus.",
        model=model,
        tools=[weather],
        model_settings=ModelSettings(
            include_usage=True,
            temperature=0.3,
            max_tokens=100,
            extra_headers={"x-a": "b"},
            tool_choice="auto",
            parallel_tool_calls=False,
        ),
    )
    result = await Runner.run(agent, 'call weather {"city": "Rome"}')
    print(result.final_output, [item.type for item in result.new_items])
    usage = result.context_wrapper.usage
    print(usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
    streamed = Runner.run_streamed(agent, 'call weather {"city": "Paris"}')
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type.endswith(".delta"):
            print(event.data.type, event.data.delta)
        elif event.type == "run_item_stream_event":
            print(event.name)
    print(streamed.final_output, streamed.context_wrapper.usage.total_tokens)
    typed = Agent(name="Typed", model=model, output_type=Weather, model_settings=ModelSettings(top_p=0.9))
    print((await Runner.run(typed, "How is Rome?")).final_output)
    named = Agent(name="Named", model="litellm/openai/gpt-4.1")
    print((await Runner.run(named, "Hello")).final_output)
    result = await Runner.run(
        Agent(name="Provided", model="openai/gpt-4.1"), "Hello", run_config=RunConfig(model_provider=LitellmProvider())
    )
    print(result.final_output, type(LitellmProvider().get_model(None)).__name__)


asyncio.run(main())
