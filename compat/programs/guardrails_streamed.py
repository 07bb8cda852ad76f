import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    Runner,
    input_guardrail,
    output_guardrail,
)
from agents.testing import ScriptedModel, assistant_message


@input_guardrail
async def no_math(context, agent, input):
    text = input if isinstance(input, str) else input[-1]["content"]
    return GuardrailFunctionOutput(output_info={"text": text}, tripwire_triggered="math" in text)


@input_guardrail(name="first", run_in_parallel=False)
def no_shouting(context, agent, input):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=str(input).isupper())


@output_guardrail
async def short(context, agent, output):
    return GuardrailFunctionOutput(output_info=len(output), tripwire_triggered=len(output) > 10)


async def main() -> None:
    for text, answer in (("hello", "hi"), ("do my math", "no"), ("hello", "a rather long answer")):
        for streamed in (False, True):
            model = ScriptedModel([[assistant_message(answer)]])
            agent = Agent(name="A", model=model, input_guardrails=[no_math, no_shouting], output_guardrails=[short])
            try:
                if streamed:
                    result = Runner.run_streamed(agent, text)
                    async for event in result.stream_events():
                        if event.type == "run_item_stream_event":
                            print(event.name)
                else:
                    result = await Runner.run(agent, text)
                print(result.final_output)
                print([(one.guardrail.get_name(), one.output.output_info) for one in result.input_guardrail_results])
                print([(one.guardrail.get_name(), one.output.output_info) for one in result.output_guardrail_results])
            except InputGuardrailTripwireTriggered as error:
                print("input", error.guardrail_result.guardrail.get_name(), error.guardrail_result.output.output_info)
            except OutputGuardrailTripwireTriggered as error:
                print("output", error.guardrail_result.agent_output, error.guardrail_result.output.output_info)


asyncio.run(main())
