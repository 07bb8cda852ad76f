import asyncio

from agents import Agent, GuardrailFunctionOutput, OutputGuardrailTripwireTriggered, Runner
from agents.guardrail import output_guardrail


@output_guardrail
async def no_shouting(context, agent, output):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="!" in output)


agent = Agent(name="A", output_guardrails=[no_shouting], model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "hello")).final_output)
    try:
        await Runner.run(agent, "hello!")
    except OutputGuardrailTripwireTriggered:
        print("tripped")


asyncio.run(main())
