"""What happens at the limit of turns: errors, handlers, sessions, nested agents."""

import asyncio

from agents import (
    Agent,
    MaxTurnsExceeded,
    RunErrorHandlerInput,
    RunErrorHandlerResult,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic import BaseModel


class Report(BaseModel):
    text: str


@function_tool
def step(n: int) -> str:
    """A step."""
    return f"step {n}"


def build(output_type=None, turns=4):
    model = ScriptedModel([[function_call("step", {"n": n}, call_id=f"c{n}")] for n in range(turns)])
    return Agent(name="Walker", model=model, tools=[step], output_type=output_type)


def give_up(data: RunErrorHandlerInput) -> RunErrorHandlerResult:
    print("handler:", data.error, len(data.run_data.new_items), data.run_data.last_agent.name)
    return RunErrorHandlerResult(final_output="I gave up.", include_in_history=False)


async def give_report(data) -> Report:
    return Report(text=str(data.error))


async def main() -> None:
    try:
        await Runner.run(build(), "walk", max_turns=2)
    except MaxTurnsExceeded as error:
        print(type(error).__name__, error, error.message, len(error.run_data.new_items), error.run_data.input)
    session = SQLiteSession("walk")
    result = await Runner.run(build(), "walk", max_turns=2, session=session, error_handlers={"max_turns": give_up})
    print(result.final_output, [item.type for item in result.new_items], len(await session.get_items()))
    result = await Runner.run(build(Report), "walk", max_turns=1, error_handlers={"max_turns": give_report})
    print(repr(result.final_output), len(result.to_input_list()))
    streamed = Runner.run_streamed(build(), "walk", max_turns=3)
    try:
        async for event in streamed.stream_events():
            if event.type == "run_item_stream_event":
                print(event.name)
    except MaxTurnsExceeded as error:
        print(error, streamed.is_complete, streamed.max_turns)
    tool = build().as_tool("walk", "Walk.", max_turns=1)
    outer = Agent(
        name="Outer",
        tools=[tool],
        model=ScriptedModel([[function_call("walk", {"input": "go"}, call_id="w")], [assistant_message("end")]]),
    )
    result = await Runner.run(outer, "x")
    print([item.output for item in result.new_items if item.type == "tool_call_output_item"], result.final_output)
    result = await Runner.run(build(turns=0).clone(model=ScriptedModel([[assistant_message("ok")]])), "x", max_turns=1)
    print(result.final_output)
    try:
        Runner.run_streamed(build(), "x", max_turns=0)
        await Runner.run(build(), "x", max_turns=0)
    except Exception as error:
        print(type(error).__name__)


asyncio.run(main())
