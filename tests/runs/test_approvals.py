"""Decisions about calls, by people and programs, nested agents included."""

from typing import Any

import pytest

from factories.runs import approve_all
from standfast import (
    Agent,
    HostedMCPTool,
    RunConfig,
    Runner,
    RunState,
    ToolErrorFormatterArgs,
    ToolExecutionConfig,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailTripwireTriggered,
    UserError,
    function_tool,
    tool_input_guardrail,
    tool_output_guardrail,
)
from standfast.testing import ScriptedModel, assistant_message, function_call


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


paid: list[int] = []


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


@function_tool(needs_approval=True)
async def pay(amount: int) -> str:
    paid.append(amount)
    return f"paid {amount}"


async def again(agent: Agent[Any], state: RunState[Any]) -> RunState[Any]:
    return await RunState.from_string(agent, state.to_string())


def outputs(result: Any) -> list[Any]:
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


async def test_a_function_decides_by_arguments_and_is_not_called_for_unreadable_ones() -> None:
    asked = []

    async def costly(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        asked.append(call_id)
        return arguments["amount"] > 10

    @function_tool(needs_approval=costly)
    async def spend(amount: int) -> int:
        return amount

    calls = [call("spend", "1", amount=5), call("spend", "2", amount=50)]
    calls += [function_call("spend", text, call_id=text) for text in ("{oops", "[1]", '{"amount": NaN}')]
    agent = Agent("a", tools=[spend], model=ScriptedModel([calls]))
    result = await Runner.run(agent, "q")
    assert [item.call_id for item in result.interruptions] == ["2"]
    assert asked == ["1", "2"]
    five, *refused = outputs(result)
    assert five == 5
    assert [("invalid arguments for tool spend" in text) for text in refused] == [True] * 3


async def test_a_decision_about_one_call_beats_the_one_about_all() -> None:
    steps = [[call("pay", "1", amount=1)], [call("pay", "2", amount=2), call("pay", "3", amount=3)]]
    agent = Agent("a", tools=[pay], model=ScriptedModel([*steps, [assistant_message("ok")]]))
    state = (await Runner.run(agent, "q")).to_state()
    state.reject(state.get_interruptions()[0], always_reject=True, rejection_message="never")
    result = await Runner.run(agent, await again(agent, state))
    assert outputs(result) == ["never"] * 3
    assert not result.interruptions
    assert paid == []


@pytest.mark.parametrize("amount", [5, 6])
async def test_a_reused_call_id_needs_another_approval(amount: int) -> None:
    script = [[call("pay", "1", amount=5)], [call("pay", "1", amount=amount)], [assistant_message("ok")]]
    agent = Agent("a", tools=[pay], model=ScriptedModel(script))
    result = await Runner.run(agent, "q")
    for before in ([], [5]):
        assert paid == before
        state = await again(agent, result.to_state())
        (item,) = state.get_interruptions()
        state.approve(item)
        result = await Runner.run(agent, await again(agent, state))
    assert (result.final_output, paid) == ("ok", [5, amount])


async def test_always_approving_one_agents_tool_does_not_approve_that_of_another() -> None:
    other = Agent("b", tools=[pay], model=ScriptedModel([[call("pay", "2", amount=2)]]))
    steps = [[call("pay", "1", amount=1)], [call("transfer_to_b", "h")]]
    agent = Agent("a", tools=[pay], handoffs=[other], model=ScriptedModel(steps))
    state = (await Runner.run(agent, "q")).to_state()
    state.approve(state.get_interruptions()[0], always_approve=True)
    result = await Runner.run(agent, await again(agent, state))
    assert [item.agent.name for item in result.interruptions] == ["b"]
    assert paid == [1]


async def test_the_text_of_a_rejection() -> None:
    def words(args: ToolErrorFormatterArgs[Any]) -> str:
        return f"{args.kind} {args.tool_name} {args.call_id} ({args.default_message})"

    for config, expected in [
        (RunConfig(), "Tool execution was not approved."),
        (RunConfig(tool_error_formatter=words), "approval_rejected pay 1 (Tool execution was not approved.)"),
    ]:
        agent = Agent("a", tools=[pay], model=ScriptedModel([[call("pay", "1", amount=1)], [assistant_message("ok")]]))
        state = (await Runner.run(agent, "q", run_config=config)).to_state()
        state.reject(state.get_interruptions()[0])
        assert outputs(await Runner.run(agent, state, run_config=config)) == [expected]


def nest(depth: int, *, tool: Any = pay) -> Agent[Any]:
    """Agents inside agents; the innermost wants to pay."""
    agent = Agent(
        "level0",
        tools=[tool],
        model=ScriptedModel([[call("pay", "p1", amount=1), call("pay", "p2", amount=2)], [assistant_message("paid")]]),
    )
    for level in range(1, depth + 1):
        inner = agent.as_tool(f"ask{level}", "asks")
        steps = [[call(f"ask{level}", f"a{level}", input="go")], [assistant_message(f"level {level} done")]]
        agent = Agent(f"level{level}", tools=[inner], model=ScriptedModel(steps))
    return agent


@pytest.mark.parametrize("depth", [1, 2, 3])
async def test_nested_approvals_are_interruptions_of_the_outer_run(depth: int) -> None:
    agent = nest(depth)
    result = await Runner.run(agent, "q")
    state = await again(agent, result.to_state())
    first, second = state.get_interruptions()
    assert first.agent.name == "level0"
    assert first.route == tuple(f"a{level}" for level in range(depth, 0, -1))
    state.approve(second)
    result = await Runner.run(agent, await again(agent, state))
    assert paid == [2]
    state = await again(agent, result.to_state())
    (left,) = state.get_interruptions()
    assert left.call_id == "p1"
    state.reject(left)
    result = await Runner.run(agent, await again(agent, state))
    assert result.final_output == f"level {depth} done"
    assert paid == [2]
    assert result.context_wrapper.usage.requests == 2 * (depth + 1)


async def test_nested_decisions_stay_nested() -> None:
    inner = Agent(
        "inner",
        tools=[pay],
        model=ScriptedModel([[call("pay", "1", amount=1)], [call("pay", "2", amount=2)], [assistant_message("in")]]),
    )
    steps = [[call("ask", "1", input="go")], [call("pay", "3", amount=3)], [assistant_message("out")]]
    outer = Agent("outer", tools=[inner.as_tool("ask", "asks"), pay], model=ScriptedModel(steps))
    state = (await Runner.run(outer, "q")).to_state()
    state.approve(state.get_interruptions()[0], always_approve=True)
    result = await Runner.run(outer, await again(outer, state))
    assert paid == [1, 2]
    assert [(item.call_id, item.route) for item in result.interruptions] == [("3", ())]


async def test_approval_of_the_agent_tool_precedes_those_of_the_nested_agent() -> None:
    inner = Agent("inner", model=ScriptedModel([[assistant_message("in")]]))
    tool = inner.as_tool("ask", "asks", needs_approval=True)
    outer = Agent(
        "outer", tools=[tool], model=ScriptedModel([[call("ask", "1", input="x")], [assistant_message("out")]])
    )
    state = (await Runner.run(outer, "q")).to_state()
    assert [item.tool_name for item in state.get_interruptions()] == ["ask"]
    approve_all(state)
    assert (await Runner.run(outer, await again(outer, state))).final_output == "out"


async def test_a_nested_agent_that_fails_is_explained_or_resumed() -> None:
    def pair(**options: Any) -> Agent[Any]:
        inner = Agent("inner", model=ScriptedModel([RuntimeError("down"), [assistant_message("up")]]))
        tool = inner.as_tool("ask", "asks", **options)
        steps = [[call("ask", "1", input="x")], [assistant_message("out")]]
        return Agent("outer", tools=[tool], model=ScriptedModel(steps))

    def quote(context: Any, error: Exception) -> str:
        return f"it says: {error}"

    assert "error occurred" in outputs(await Runner.run(pair(), "q"))[0]
    assert outputs(await Runner.run(pair(failure_error_function=quote), "q")) == ["it says: down"]
    agent = pair(failure_error_function=None)
    with pytest.raises(UserError, match="down") as raised:
        await Runner.run(agent, "q")
    state = await again(agent, raised.value.run_data.state)
    result = await Runner.run(agent, state)
    assert (outputs(result), result.final_output) == (["up"], "out")


async def test_the_output_of_a_nested_run_can_be_extracted() -> None:
    async def extract(result: Any) -> str:
        return f"{result.agent_tool_invocation.tool_call_id}: {result.final_output}"

    inner = Agent("inner", model=ScriptedModel([[assistant_message("in")]]))
    tool = inner.as_tool("ask", "asks", custom_output_extractor=extract)
    outer = Agent(
        "outer", tools=[tool], model=ScriptedModel([[call("ask", "7", input="x")], [assistant_message("out")]])
    )
    assert outputs(await Runner.run(outer, "q")) == ["7: in"]


@pytest.mark.parametrize("early", [True, False])
async def test_tool_guardrails_run_before_the_approval_only_if_configured_and_always_after(early: bool) -> None:
    asked = []

    @tool_input_guardrail
    async def cautious(data: Any) -> ToolGuardrailFunctionOutput:
        asked.append(data.context.tool_arguments)
        if "13" in data.context.tool_arguments:
            return ToolGuardrailFunctionOutput.reject_content("unlucky")
        return ToolGuardrailFunctionOutput.allow()

    @function_tool(needs_approval=True, tool_input_guardrails=[cautious])
    async def spend(amount: int) -> int:
        return amount

    model = ScriptedModel([[call("spend", "1", amount=13), call("spend", "2", amount=1)], [assistant_message("ok")]])
    agent = Agent("a", tools=[spend], model=model)
    config = RunConfig(tool_execution=ToolExecutionConfig(pre_approval_tool_input_guardrails=early))
    result = await Runner.run(agent, "q", run_config=config)
    assert len(result.interruptions) == (1 if early else 2)
    assert len(asked) == (2 if early else 0)
    state = await again(agent, result.to_state())
    approve_all(state)
    result = await Runner.run(agent, state, run_config=config)
    assert outputs(result) == ["unlucky", 1]
    assert len(asked) == (3 if early else 2)
    assert {verdict.guardrail.get_name() for verdict in result.tool_input_guardrail_results} == {"cautious"}


async def test_tool_guardrails_replace_outputs_or_end_the_run() -> None:
    @tool_output_guardrail
    async def hide(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.reject_content("hidden")

    @tool_input_guardrail
    async def never(data: Any) -> ToolGuardrailFunctionOutput:
        return ToolGuardrailFunctionOutput.raise_exception("bad")

    @function_tool(tool_output_guardrails=[hide])
    async def leak() -> str:
        return "secret"

    @function_tool(tool_input_guardrails=[never])
    async def forbidden() -> str:
        paid.append(1)
        return "x"

    agent = Agent("a", tools=[leak, forbidden], model=ScriptedModel([[call("leak", "1"), call("forbidden", "2")]]))
    with pytest.raises(ToolInputGuardrailTripwireTriggered) as raised:
        await Runner.run(agent, "q")
    assert [item.output for item in raised.value.run_data.new_items[2:]] == ["hidden"]
    assert len(raised.value.run_data.tool_output_guardrail_results) == 1
    assert paid == []


REQUEST = {"type": "mcp_approval_request", "id": "m1", "name": "drop", "arguments": "{}", "server_label": "db"}


@pytest.mark.parametrize("answer", [True, False, None])
async def test_hosted_mcp_servers_ask_a_function_or_a_person(answer: bool | None) -> None:
    def decide(request: Any) -> Any:
        return {"approve": answer, "reason": "no way"}

    tool = HostedMCPTool({"server_label": "db"}, None if answer is None else decide)
    model = ScriptedModel([[REQUEST], [assistant_message("ok")]])
    agent = Agent("a", tools=[tool], model=model)
    result = await Runner.run(agent, "q")
    if answer is None:
        state = await again(agent, result.to_state())
        (item,) = state.get_interruptions()
        assert (item.call_id, item.tool_name) == ("m1", "drop")
        state.reject(item, rejection_message="no way")
        result = await Runner.run(agent, await again(agent, state))
    sent = model.last_call.input[-1]
    assert (sent["approval_request_id"], sent["approve"]) == ("m1", bool(answer))
    assert sent.get("reason") == (None if answer else "no way")
    assert [item.type for item in result.new_items][:2] == [
        "mcp_approval_request_item",
        "mcp_approval_response_item" if answer is not None else "tool_approval_item",
    ]


async def test_the_text_for_an_unknown_tool() -> None:
    def words(args: ToolErrorFormatterArgs[Any]) -> str:
        return f"{args.kind}: {args.default_message}"

    agent = Agent("a", tools=[pay], model=ScriptedModel([[call("nope", "1")], [assistant_message("ok")]]))
    config = RunConfig(tool_not_found_behavior="return_error_to_model", tool_error_formatter=words)
    assert outputs(await Runner.run(agent, "q", run_config=config)) == ["tool_not_found: Tool 'nope' not found."]


@pytest.mark.parametrize("approved", [True, False])
async def test_a_second_call_with_the_same_id_needs_a_decision_of_its_own(approved: bool) -> None:
    model = ScriptedModel([[call("pay", "c1", amount=5)], [call("pay", "c1", amount=500)], [assistant_message("end")]])
    agent = Agent("a", tools=[pay], model=model)
    first = await Runner.run(agent, "q")
    state = first.to_state()
    (state.approve if approved else state.reject)(first.interruptions[0])
    second = await Runner.run(agent, await again(agent, state))
    assert [item.call_id for item in second.interruptions] == ["c1"]
    assert paid == ([5] if approved else [])
