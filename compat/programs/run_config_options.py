import asyncio

from agents import (
    Agent,
    GuardrailFunctionOutput,
    ModelBehaviorError,
    ModelSettings,
    OutputGuardrailBlockedMessageArgs,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunContextWrapper,
    Runner,
    SQLiteSession,
    ToolErrorFormatterArgs,
    ToolExecutionConfig,
    UserError,
    default_tool_error_function,
    function_tool,
    output_guardrail,
)


@function_tool
async def fail(n: int) -> str:
    """Fail."""
    raise ValueError("secret")


@function_tool(failure_error_function=lambda context, error: f"sorry: {error}")
async def excuse() -> str:
    """Fail."""
    raise ValueError("secret")


running = 0
most = 0


@function_tool
async def work(n: int) -> int:
    """Work."""
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.01)
    running -= 1
    return n


def explain(args: ToolErrorFormatterArgs[None]) -> str:
    print(args.kind, args.tool_type, args.tool_name, args.call_id, args.default_message)
    return f"formatted {args.tool_name}"


@output_guardrail
def refuse(context, agent, output):
    return GuardrailFunctionOutput(output_info="bad", tripwire_triggered=True)


def blocked(args: OutputGuardrailBlockedMessageArgs) -> str:
    print(type(args).__name__, sorted(name for name in vars(args)))
    return "blocked text"


async def main() -> None:
    agent = Agent(name="A", tools=[fail, excuse, work], model="gpt-4.1")
    print((await Runner.run(agent, 'call fail {"n": 1}')).final_output)
    print(
        (await Runner.run(agent, 'call fail {"n": 1}', run_config=RunConfig(tool_error_formatter=explain))).final_output
    )
    print((await Runner.run(agent, "call excuse {}")).final_output)
    print(default_tool_error_function(RunContextWrapper(None), ValueError("x")))
    text = " and ".join(f'call work {{"n": {n}}}' for n in range(4))
    await Runner.run(
        agent, text, run_config=RunConfig(tool_execution=ToolExecutionConfig(max_function_tool_concurrency=2))
    )
    print(most)
    try:
        await Runner.run(agent, "call missing {}")
    except ModelBehaviorError as error:
        print(type(error).__name__)
    print(
        (
            await Runner.run(
                agent,
                "call missing {}",
                run_config=RunConfig(tool_not_found_behavior="return_error_to_model", tool_error_formatter=explain),
            )
        ).final_output
    )
    guarded = Agent(name="G", model="gpt-4.1", output_guardrails=[refuse])
    session = SQLiteSession("s")
    try:
        await Runner.run(
            guarded, "hello", session=session, run_config=RunConfig(output_guardrail_blocked_message=blocked)
        )
    except OutputGuardrailTripwireTriggered as error:
        print(
            error.guardrail_result.output.output_info,
            error.guardrail_result.agent_output,
            error.guardrail_result.agent.name,
        )
    print(await session.get_items())
    for bad in (0, -1):
        try:
            ToolExecutionConfig(max_function_tool_concurrency=bad)
            print("accepted", bad)
        except (ValueError, UserError) as error:
            print("refused", isinstance(error, ValueError))
    result = await Runner.run(
        agent,
        "hi",
        run_config=RunConfig(
            model="gpt-4o",
            model_settings=ModelSettings(temperature=0.1, extra_body={"x": 1}, metadata={"a": "b"}),
            reasoning_item_id_policy="omit",
            tool_name_collision_policy="error",
        ),
    )
    print(result.final_output)


asyncio.run(main())
