"""Guardrails that race with the agent or come before it, and sessions."""

import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    SQLiteSession,
    input_guardrail,
    output_guardrail,
)
from pydantic import BaseModel


class Verdict(BaseModel):
    is_homework: bool
    reasoning: str


judge = Agent(name="Judge", instructions="Is it homework?", output_type=Verdict, model="gpt-4.1")


@input_guardrail(name="homework", run_in_parallel=False)
async def homework(context, agent, text):
    result = await Runner.run(judge, text, context=context.context)
    verdict = result.final_output_as(Verdict)
    return GuardrailFunctionOutput(output_info=verdict, tripwire_triggered="homework" in str(text))


@input_guardrail
def always_fine(context, agent, text):
    return GuardrailFunctionOutput(output_info=type(text).__name__, tripwire_triggered=False)


@output_guardrail
async def no_shouting(context, agent, output):
    return GuardrailFunctionOutput(output_info=output[:10], tripwire_triggered=output.isupper())


async def loud(context, agent, output) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="!!!" in output)


agent = Agent(name="Tutor", model="gpt-4.1", input_guardrails=[homework, always_fine], output_guardrails=[no_shouting])
config = RunConfig(
    input_guardrails=[InputGuardrail(guardrail_function=always_fine.guardrail_function, name="mine")],
    output_guardrails=[OutputGuardrail(guardrail_function=loud)],
)


async def attempt(text, session=None) -> str:
    try:
        result = await Runner.run(agent, text, run_config=config, session=session)
    except InputGuardrailTripwireTriggered as error:
        found = error.guardrail_result
        return f"{type(error).__name__}: {error} / {found.guardrail.get_name()} {found.output.output_info}"
    except OutputGuardrailTripwireTriggered as error:
        found = error.guardrail_result
        return f"{type(error).__name__}: {error} / {found.guardrail.get_name()} {found.agent_output} {found.agent.name}"
    names = [check.guardrail.get_name() for check in result.input_guardrail_results]
    return f"{result.final_output} {sorted(names)} {[c.guardrail.get_name() for c in result.output_guardrail_results]}"


async def main() -> None:
    for text in ("hello", "my homework"):
        print(await attempt(text))
    session = SQLiteSession("tutor")
    for text in ("hi", "homework", "so loud!!!", "bye"):
        print(await attempt(text, session))
        print([item["content"] if isinstance(item["content"], str) else "..." for item in await session.get_items()])
    streamed = Runner.run_streamed(agent, "homework again", run_config=config)
    try:
        async for event in streamed.stream_events():
            print(event.type)
    except InputGuardrailTripwireTriggered as error:
        print(error.run_data.input, len(error.run_data.raw_responses), len(streamed.input_guardrail_results))


asyncio.run(main())
