import asyncio

from agents import Agent, Runner
from agents.run import CallModelData, ModelInputData, RunConfig


def last_only(data: CallModelData) -> ModelInputData:
    return ModelInputData(input=data.model_data.input[-1:], instructions="Short.")


agent = Agent(name="A", instructions="Long.", model="gpt-4.1")


async def main() -> None:
    items = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    print((await Runner.run(agent, items, run_config=RunConfig(call_model_input_filter=last_only))).final_output)


asyncio.run(main())
