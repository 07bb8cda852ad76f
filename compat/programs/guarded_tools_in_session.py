"""Guardrails of tools that reject, raise and rewrite, in runs that share a session."""

import asyncio
import json

from agents import (
    Agent,
    Runner,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailData,
    ToolOutputGuardrailTripwireTriggered,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)


@tool_input_guardrail
async def no_secrets_in(data: ToolInputGuardrailData) -> ToolGuardrailFunctionOutput:
    arguments = json.loads(data.context.tool_arguments or "{}")
    if "sk-" in json.dumps(arguments):
        return ToolGuardrailFunctionOutput.reject_content("Remove the key.", output_info={"arguments": arguments})
    if "bomb" in json.dumps(arguments):
        return ToolGuardrailFunctionOutput.raise_exception(output_info={"why": "forbidden"})
    return ToolGuardrailFunctionOutput(output_info="checked")


@tool_output_guardrail(name="leaks")
def no_secrets_out(data: ToolOutputGuardrailData) -> ToolGuardrailFunctionOutput:
    if "555" in str(data.output):
        return ToolGuardrailFunctionOutput.raise_exception({"phone": data.output})
    return ToolGuardrailFunctionOutput.allow()


@function_tool(tool_input_guardrails=[no_secrets_in], tool_output_guardrails=[no_secrets_out])
def classify(text: str) -> str:
    """Classify a text."""
    return f"category {len(text)}" if "phone" not in text else "555-1234"


async def main() -> None:
    session = SQLiteSession("guarded")
    agent = Agent(name="Classifier", instructions="Classify.", tools=[classify])
    for text in ("hello", "sk-123", "a bomb", "my phone", "bye"):
        try:
            result = await Runner.run(agent, f'call classify {{"text": "{text}"}}', session=session)
            print(result.final_output)
            for check in result.tool_input_guardrail_results:
                print(" in", check.guardrail.get_name(), check.output.behavior, check.output.output_info)
            for check in result.tool_output_guardrail_results:
                print(" out", check.guardrail.get_name(), check.output.behavior, check.output.output_info)
        except ToolInputGuardrailTripwireTriggered as error:
            print("input tripped:", error, error.output.output_info, error.guardrail.get_name())
        except ToolOutputGuardrailTripwireTriggered as error:
            print("output tripped:", error, error.output.output_info, error.guardrail.get_name())
        print(len(await session.get_items()), [item.get("type") for item in await session.get_items()][-3:])


asyncio.run(main())
