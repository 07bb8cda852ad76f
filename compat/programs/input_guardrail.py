import asyncio

from agents import Agent, GuardrailFunctionOutput, InputGuardrailTripwireTriggered, Runner, input_guardrail


@input_guardrail(run_in_parallel=False)
async def no_secrets(context, agent, input):
    return GuardrailFunctionOutput(output_info="checked", tripwire_triggered="secret" in str(input))


agent = Agent(name="A", input_guardrails=[no_secrets], model="gpt-4.1")


async def main() -> None:
    print((await Runner.run(agent, "hello")).input_guardrail_results[0].output.output_info)
    try:
        await Runner.run(agent, "my secret")
    except InputGuardrailTripwireTriggered as error:
        print("tripped", error.guardrail_result.guardrail.get_name())


asyncio.run(main())
