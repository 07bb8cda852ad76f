import asyncio

from agents import Agent, RunConfig, Runner, Usage
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import (
    ResponseCompletedEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseOutputItemDoneEvent,
    ResponseTextDeltaEvent,
)


async def main() -> None:
    usage = Usage(requests=1, input_tokens=2, output_tokens=3, total_tokens=5)
    step = ModelStep(output=[function_call("look", {"at": "x"}, call_id="c1"), assistant_message("Hello")], usage=usage)
    agent = Agent(name="Assistant", model=ScriptedModel([step]))
    config = RunConfig(tool_not_found_behavior="return_error_to_model")
    result = Runner.run_streamed(agent, "Hi", run_config=config, max_turns=1)
    try:
        async for event in result.stream_events():
            if event.type != "raw_response_event":
                continue
            if isinstance(event.data, ResponseTextDeltaEvent):
                print("text", event.data.delta)
            elif isinstance(event.data, ResponseFunctionCallArgumentsDeltaEvent):
                print("arguments", event.data.delta)
            elif isinstance(event.data, ResponseOutputItemDoneEvent):
                print("item", event.data.item.type)
            elif isinstance(event.data, ResponseCompletedEvent):
                print("completed", event.data.response.usage.total_tokens)
    except Exception as error:
        print(type(error).__name__)


asyncio.run(main())
