import asyncio

from agents import (
    Agent,
    AgentsException,
    Runner,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailData,
    ToolInputGuardrailResult,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrail,
    ToolOutputGuardrailData,
    ToolOutputGuardrailResult,
    ToolOutputGuardrailTripwireTriggered,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)


@tool_input_guardrail
def check_input(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    print("in", data.context.tool_name, data.context.tool_call_id, data.context.tool_arguments, data.agent.name)
    if "secret" in data.context.tool_arguments:
        return ToolGuardrailFunctionOutput.reject_content("not that", output_info={"why": "secret"})
    if "stop" in data.context.tool_arguments:
        return ToolGuardrailFunctionOutput.raise_exception(output_info="stopped")
    return ToolGuardrailFunctionOutput.allow(output_info="fine")


async def judge(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    print("out", data.output)
    if "hide" in str(data.output):
        return ToolGuardrailFunctionOutput.reject_content("hidden")
    if "burn" in str(data.output):
        return ToolGuardrailFunctionOutput.raise_exception()
    return ToolGuardrailFunctionOutput(output_info=None)


named = ToolOutputGuardrail(guardrail_function=judge, name="judge")
print(
    check_input.get_name(),
    named.get_name(),
    isinstance(check_input, ToolInputGuardrail),
    tool_output_guardrail(name="n")(judge).get_name(),
)


@function_tool(tool_input_guardrails=[check_input], tool_output_guardrails=[named])
def say(text: str) -> str:
    """Say."""
    return f"said {text}"


agent = Agent(name="A", tools=[say], model="gpt-4.1")


async def main() -> None:
    for word in ("hello", "secret", "stop", "hide", "burn"):
        try:
            result = await Runner.run(agent, f'call say {{"text": "{word}"}}')
            print(result.final_output)
            for found in (*result.tool_input_guardrail_results, *result.tool_output_guardrail_results):
                print(
                    type(found) in (ToolInputGuardrailResult, ToolOutputGuardrailResult),
                    found.guardrail.get_name(),
                    found.output.behavior,
                    found.output.output_info,
                )
        except ToolInputGuardrailTripwireTriggered as error:
            print(
                "input",
                error.guardrail.get_name(),
                error.output.output_info,
                isinstance(error, AgentsException),
                error.run_data is not None,
            )
        except ToolOutputGuardrailTripwireTriggered as error:
            print("output", error.guardrail.get_name(), error.output.behavior, len(error.run_data.new_items) >= 0)
    streamed = Runner.run_streamed(agent, 'call say {"text": "stop"}')
    try:
        async for event in streamed.stream_events():
            print(event.type, getattr(event, "name", ""))
    except ToolInputGuardrailTripwireTriggered as error:
        print("streamed", error.output.behavior)


asyncio.run(main())
