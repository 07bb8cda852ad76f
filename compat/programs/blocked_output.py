import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
    output_guardrail,
)


@function_tool
def look_up() -> str:
    """Look something up."""
    return "the secret is 42"


@output_guardrail
def no_secrets(context, agent, output):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="secret" in str(output))


async def main() -> None:
    agent = Agent(
        name="Assistant",
        tools=[look_up],
        tool_use_behavior="stop_on_first_tool",
        output_guardrails=[no_secrets],
    )
    for message in (None, "Withheld.", lambda args: f"{args.guardrail_name} stopped {args.agent.name}"):
        session = SQLiteSession("s")
        try:
            await Runner.run(
                agent,
                "call look_up {}",
                session=session,
                run_config=RunConfig(output_guardrail_blocked_message=message),
            )
        except OutputGuardrailTripwireTriggered as error:
            print(error.guardrail_result.guardrail.get_name())
        print([item.get("output", item.get("role")) for item in await session.get_items()])


asyncio.run(main())
