import asyncio

from agents import Agent, Model, ModelProvider, OpenAIChatCompletionsModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI


@function_tool
def get_weather(city: str) -> str:
    """The weather."""
    return f"The weather in {city} is sunny."


class CustomProvider(ModelProvider):
    def get_model(self, model_name: str | None) -> Model:
        return OpenAIChatCompletionsModel(model=model_name or "custom-model", openai_client=client)


async def main() -> None:
    agent = Agent(name="Assistant", instructions="You only respond in haikus.", tools=[get_weather])
    for text in ('call get_weather {"city": "Tokyo"}', "Hello"):
        result = await Runner.run(agent, text, run_config=RunConfig(model_provider=CustomProvider()))
        print(result.final_output)
    other = Agent(name="Other", model=OpenAIChatCompletionsModel(model="m", openai_client=client))
    print((await Runner.run(other, "Hi")).final_output)


client = AsyncOpenAI()
asyncio.run(main())
