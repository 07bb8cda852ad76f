import asyncio

from agents import Agent, Runner, function_tool
from agents.testing import (
    ModelStep,
    ScriptedModel,
    UnconsumedModelSteps,
    UnexpectedModelCall,
    assistant_message,
    function_call,
)


@function_tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def main() -> None:
    model = ScriptedModel([[function_call("add", {"a": 1, "b": 2}, call_id="c1")], [assistant_message("3")]])
    agent = Agent(name="Adder", model=model, tools=[add])
    result = await Runner.run(agent, "1 + 2?")
    print(result.final_output, len(model.calls), model.first_call.streamed, model.last_call.input[-1]["output"])
    model.assert_complete()
    try:
        await Runner.run(agent, "again")
    except UnexpectedModelCall as error:
        print(error.call_index)
    model.enqueue(ModelStep.respond(lambda call: [assistant_message(f"{len(call.tools)} tool")]))
    streamed = Runner.run_streamed(agent, "How many?")
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            print(event.data.delta)
    print(streamed.final_output)
    model.extend([[assistant_message("unused")]])
    try:
        model.assert_complete()
    except UnconsumedModelSteps as error:
        print(error.remaining_steps)


asyncio.run(main())
