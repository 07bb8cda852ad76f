import asyncio

from agents import Agent, OpenAIProvider, OpenAIResponsesModel, OpenAIResponsesWSModel, RunConfig, Runner
from agents.models.openai_responses import ResponsesWebSocketError
from openai import AsyncOpenAI


async def main() -> None:
    provider = OpenAIProvider(
        use_responses_websocket=True, responses_websocket_options={"ping_interval": 20.0, "ping_timeout": 60.0}
    )
    model = provider.get_model("gpt-4.1")
    print(type(model).__name__, isinstance(model, OpenAIResponsesModel), model is provider.get_model("gpt-4.1"))
    agent = Agent(name="Assistant", model="gpt-4.1")
    config = RunConfig(model_provider=provider)
    try:
        await Runner.run(agent, "Hello", run_config=config, previous_response_id="resp_unknown")
    except ResponsesWebSocketError as error:
        print(error.code, error.error_type, error.error_message)
    print((await Runner.run(agent, "Hello", run_config=config)).final_output)
    await provider.aclose()
    print((await Runner.run(agent, "Once more", run_config=config)).final_output)
    await provider.aclose()

    model = OpenAIResponsesWSModel("gpt-4.1", AsyncOpenAI(base_url="http://127.0.0.1:9/v1", max_retries=0))
    try:
        await Runner.run(Agent(name="Assistant", model=model), "Hello")
    except Exception:
        print("no server there")
    await model.close()


asyncio.run(main())
