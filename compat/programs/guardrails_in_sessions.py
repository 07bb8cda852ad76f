"""Input guardrails check what the model is sent: in a session also its history. They are named after their functions."""

import asyncio

from agents import Agent, GuardrailFunctionOutput, RunConfig, Runner, SQLiteSession, ToolGuardrailFunctionOutput
from agents.decorators import input_guardrail, output_guardrail, tool_input_guardrail, tool_output_guardrail


@input_guardrail
def short(context, agent, input):
    if isinstance(input, str):
        print("text", input)
    else:
        print("items", [item["content"] if isinstance(item["content"], str) else "answer" for item in input])
    return GuardrailFunctionOutput(None, tripwire_triggered=False)


@output_guardrail
async def polite(context, agent, output):
    return GuardrailFunctionOutput(len(output), tripwire_triggered=False)


@tool_input_guardrail()
def harmless(data):
    return ToolGuardrailFunctionOutput.allow()


@tool_output_guardrail(name="secrets")
def secret(data):
    return ToolGuardrailFunctionOutput.allow()


async def main():
    print([guardrail.name for guardrail in (short, polite, harmless, secret)])
    agent = Agent(name="guide", input_guardrails=[short], output_guardrails=[polite])
    session = SQLiteSession("ann")
    await Runner.run(agent, "one")
    await Runner.run(agent, "two", session=session)
    result = await Runner.run(agent, "three", session=session)
    print(
        [item["role"] for item in result.input], [found.output.output_info for found in result.output_guardrail_results]
    )
    await Runner.run(agent, [{"role": "user", "content": "four"}], session=session)
    config = RunConfig(session_input_callback=lambda history, new: history[:1] + new)
    streamed = Runner.run_streamed(agent, "five", session=session, run_config=config)
    async for _ in streamed.stream_events():
        pass
    await Runner.run(agent.clone(output_guardrails=[]), "six", previous_response_id="resp_1")


asyncio.run(main())
