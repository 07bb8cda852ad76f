import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    OutputGuardrail,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    TResponseInputItem,
    input_guardrail,
    output_guardrail,
)


@input_guardrail(run_in_parallel=False)
async def block(
    context: RunContextWrapper[None], agent: Agent, items: str | list[TResponseInputItem]
) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info={"n": 1}, tripwire_triggered="bad" in str(items))


@input_guardrail(name="second")
def note(context, agent, items):
    return GuardrailFunctionOutput(output_info="noted", tripwire_triggered=False)


@output_guardrail
async def check(context, agent, output):
    return GuardrailFunctionOutput(output_info=len(output), tripwire_triggered="worse" in output)


async def main() -> None:
    print(
        block.get_name(),
        note.get_name(),
        check.get_name(),
        block.run_in_parallel,
        note.run_in_parallel,
        isinstance(block, InputGuardrail),
        isinstance(check, OutputGuardrail),
    )
    agent = Agent(name="A", model="gpt-4.1", input_guardrails=[block, note], output_guardrails=[check])
    for text in ("fine", "bad", "worse"):
        session = SQLiteSession(text)
        try:
            result = await Runner.run(agent, text, session=session, run_config=RunConfig(input_guardrails=[note]))
            print(
                result.final_output,
                [(found.guardrail.get_name(), found.output.output_info) for found in result.input_guardrail_results],
            )
            print([(found.guardrail.get_name(), found.agent_output) for found in result.output_guardrail_results])
        except InputGuardrailTripwireTriggered as error:
            print(
                "input",
                error.guardrail_result.guardrail.get_name(),
                error.guardrail_result.output.output_info,
                len(error.run_data.input_guardrail_results),
            )
        except OutputGuardrailTripwireTriggered as error:
            print("output", error.guardrail_result.guardrail.get_name(), error.run_data.last_agent.name)
        print(await session.get_items())
    streamed = Runner.run_streamed(agent, "bad")
    try:
        async for event in streamed.stream_events():
            print(event.type)
    except InputGuardrailTripwireTriggered:
        print("tripped", streamed.is_complete, streamed.final_output, len(streamed.input_guardrail_results))


asyncio.run(main())
