import asyncio

from agents import Agent, ModelRetrySettings, ModelSettings, RunConfig, Runner, retry_policies
from agents.testing import ModelStep, ScriptedModel, assistant_message


async def main() -> None:
    policy = retry_policies.any(retry_policies.provider_suggested(), retry_policies.network_error())
    settings = ModelSettings(retry=ModelRetrySettings(max_retries=2, backoff={"initial_delay": 0.0}, policy=policy))
    agent = Agent(name="Assistant", instructions="You are concise.", model_settings=settings)
    print((await Runner.run(agent, "Hello")).final_output)
    model = ScriptedModel([ModelStep.raise_error(ValueError("no")), [assistant_message("unused")]])
    try:
        await Runner.run(agent, "Hello", run_config=RunConfig(model=model))
    except ValueError as error:
        print(error, model.remaining_steps)


asyncio.run(main())
