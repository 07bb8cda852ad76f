import asyncio

from agents import Agent, Runner
from agents.items import ModelResponse
from agents.models.interface import Model, ModelProvider
from agents.run import RunConfig
from agents.testing import assistant_message
from agents.usage import Usage


class Fixed(Model):
    async def get_response(
        self, system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **_
    ):
        return ModelResponse(output=[assistant_message("fixed")], usage=Usage(), response_id=None)

    def stream_response(self, *args, **kwargs):
        raise NotImplementedError


class Provider(ModelProvider):
    def get_model(self, model_name):
        return Fixed()


async def main() -> None:
    print(
        (
            await Runner.run(Agent(name="A", model="mine"), "x", run_config=RunConfig(model_provider=Provider()))
        ).final_output
    )


asyncio.run(main())
