import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrailTripwireTriggered,
    RunContextWrapper,
    Runner,
    TResponseInputItem,
    input_guardrail,
)
from pydantic import BaseModel


class MathHomework(BaseModel):
    reasoning: str
    is_math_homework: bool


checker = Agent(name="Guardrail check", instructions="Is it homework?", output_type=MathHomework)


@input_guardrail(run_in_parallel=False)
async def math_guardrail(
    context: RunContextWrapper[None], agent: Agent, input: str | list[TResponseInputItem]
) -> GuardrailFunctionOutput:
    result = await Runner.run(checker, input, context=context.context)
    output = result.final_output_as(MathHomework)
    return GuardrailFunctionOutput(output_info=output, tripwire_triggered=output.is_math_homework)


async def main() -> None:
    agent = Agent(name="Support", instructions="Help.", input_guardrails=[math_guardrail])
    try:
        await Runner.run(agent, [{"role": "user", "content": "Solve 2x + 5 = 11"}])
    except InputGuardrailTripwireTriggered as error:
        print(error.guardrail_result.output.output_info, error.guardrail_result.guardrail.get_name())


asyncio.run(main())
