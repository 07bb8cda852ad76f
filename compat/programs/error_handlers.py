import asyncio

from agents import (
    Agent,
    MaxTurnsExceeded,
    RunErrorData,
    RunErrorDetails,
    RunErrorHandlerInput,
    RunErrorHandlerResult,
    RunErrorHandlers,
    Runner,
    function_tool,
)


@function_tool
def again() -> str:
    """Again."""
    return "again"


agent = Agent(name="A", tools=[again], model="gpt-4.1")


def on_max(data: RunErrorHandlerInput) -> RunErrorHandlerResult:
    run: RunErrorData = data.run_data
    print(
        type(data.error).__name__,
        len(run.new_items),
        len(run.raw_responses),
        run.last_agent.name,
        len(run.history),
        len(run.output),
        data.context.context,
    )
    return RunErrorHandlerResult(final_output="gave up", include_in_history=False)


async def main() -> None:
    handlers: RunErrorHandlers = {"max_turns": on_max}
    result = await Runner.run(agent, "call again {}", max_turns=1, error_handlers=handlers, context="c")
    print(result.final_output, [item.type for item in result.new_items])
    result = await Runner.run(agent, "call again {}", max_turns=1, error_handlers={"max_turns": lambda data: "short"})
    print(result.final_output, [item.type for item in result.new_items])
    result = await Runner.run(
        agent, "call again {}", max_turns=1, error_handlers={"max_turns": lambda data: {"final_output": "dict"}}
    )
    print(result.final_output)
    try:
        await Runner.run(agent, "call again {}", max_turns=1, error_handlers={"max_turns": lambda data: None})
    except MaxTurnsExceeded as error:
        details: RunErrorDetails = error.run_data
        print(
            details.input,
            [item.type for item in details.new_items],
            details.last_agent.name,
            len(details.input_guardrail_results),
        )
    streamed = Runner.run_streamed(agent, "call again {}", max_turns=1, error_handlers=handlers, context="s")
    async for event in streamed.stream_events():
        if event.type == "run_item_stream_event":
            print(event.name)
    print(streamed.final_output, streamed.is_complete)


asyncio.run(main())
