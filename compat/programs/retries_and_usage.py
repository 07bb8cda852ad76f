"""A model that fails twice, in plain and streamed runs, with usage counted per request."""

import asyncio

import httpx2 as httpx
import openai
from agents import (
    Agent,
    ModelRetryBackoffSettings,
    ModelRetrySettings,
    ModelSettings,
    RunConfig,
    Runner,
    Usage,
    function_tool,
    retry_policies,
)
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

request = httpx.Request("POST", "http://127.0.0.1/v1")


def unavailable():
    return openai.APIStatusError("unavailable", response=httpx.Response(503, request=request), body=None)


@function_tool
def count(n: int) -> int:
    """Count."""
    return n + 1


def build():
    return ScriptedModel(
        [
            unavailable(),
            ModelStep(
                output=[function_call("count", {"n": 1}, call_id="c")],
                usage=Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15),
            ),
            openai.APIConnectionError(request=request),
            ModelStep(
                output=[assistant_message("two")],
                usage=Usage(requests=1, input_tokens=20, output_tokens=1, total_tokens=21),
            ),
        ]
    )


settings = ModelSettings(
    retry=ModelRetrySettings(
        max_retries=1,
        backoff=ModelRetryBackoffSettings(initial_delay=0.0, max_delay=0.0),
        policy=retry_policies.any(retry_policies.network_error(), retry_policies.http_status([503])),
    )
)


def show(usage) -> None:
    print(usage.requests, usage.input_tokens, usage.output_tokens, usage.total_tokens)
    for entry in usage.request_usage_entries:
        print("  ", entry.input_tokens, entry.output_tokens, entry.total_tokens)


async def main() -> None:
    agent = Agent(name="A", model=build(), tools=[count])
    result = await Runner.run(agent, "x", run_config=RunConfig(model_settings=settings))
    print(result.final_output, len(result.raw_responses))
    show(result.context_wrapper.usage)
    result = Runner.run_streamed(Agent(name="A", model=build(), tools=[count], model_settings=settings), "x")
    async for event in result.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name)
    show(result.context_wrapper.usage)
    try:
        await Runner.run(Agent(name="A", model=build(), tools=[count]), "x")
    except openai.APIStatusError as error:
        print(type(error).__name__, error)
    total = Usage()
    for _ in range(2):
        total.add(result.context_wrapper.usage)
    show(total)
    print(total == Usage(), Usage() == Usage())


asyncio.run(main())
