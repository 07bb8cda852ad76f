"""Hooks and the items of a run."""

from typing import Any

from openai.types.responses import ResponseFunctionWebSearch


def make_hooks(lib: Any, name: str, log: list[str]) -> Any:
    class Hooks(lib.AgentHooks):  # type: ignore[misc]
        async def on_start(self, context: Any, agent: Any) -> None:
            log.append(f"{name}: {agent.name} starts with {len(context.turn_input)}")

        async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
            log.append(f"{name}: {source.name} to {agent.name}")

    return Hooks()


async def test_the_hooks_of_the_agent_that_hands_off_are_called(lib: Any) -> None:
    log: list[str] = []
    b = lib.Agent(name="b", model=lib.ScriptedModel([[lib.assistant_message("hi")]]))
    model = lib.ScriptedModel([[lib.function_call("transfer_to_b", {}, call_id="c")]])
    await lib.Runner.run(lib.Agent(name="a", model=model, handoffs=[b], hooks=make_hooks(lib, "a", log)), "hi")
    assert log == ["a: a starts with 1", "a: a to b"]


async def test_start_hooks_get_the_input_and_run_again_when_the_run_is_resumed(lib: Any) -> None:
    log: list[str] = []

    @lib.function_tool(needs_approval=True)
    def pay() -> str:
        log.append("pay")
        return "paid"

    model = lib.ScriptedModel([[lib.function_call("pay", {}, call_id="c1")], [lib.assistant_message("done")]])
    agent = lib.Agent(name="a", model=model, tools=[pay], hooks=make_hooks(lib, "a", log))
    result = await lib.Runner.run(agent, "hi")
    state = result.to_state()
    state.approve(result.interruptions[0])
    await lib.Runner.run(agent, state)
    assert log == ["a: a starts with 1", "pay", "a: a starts with 1"]


async def test_a_call_that_waits_for_approval_is_among_the_new_items(lib: Any) -> None:
    @lib.function_tool(needs_approval=True)
    def pay() -> str:
        return "paid"

    @lib.function_tool
    def look() -> str:
        return "seen"

    calls = [lib.function_call(name, {}, call_id=id) for name, id in (("pay", "c1"), ("look", "c2"), ("pay", "c3"))]
    agent = lib.Agent(name="a", model=lib.ScriptedModel([calls, [lib.assistant_message("done")]]), tools=[pay, look])
    result = await lib.Runner.run(agent, "hi")
    before = ["tool_call_item"] * 3 + ["tool_approval_item", "tool_call_output_item", "tool_approval_item"]
    assert [item.type for item in result.new_items] == before
    assert len(result.to_input_list()) == 5
    state = await lib.RunState.from_string(agent, result.to_state().to_string())
    for item in state.get_interruptions():
        state.approve(item)
    result = await lib.Runner.run(agent, state)
    after = ["tool_call_output_item", "tool_call_output_item", "message_output_item"]
    assert [item.type for item in result.new_items] == before + after
    assert len(result.to_input_list()) == 8


async def test_a_tool_sees_its_call_as_an_object_in_a_loaded_run(lib: Any) -> None:
    seen: list[Any] = []

    async def look(context: Any, arguments: str) -> str:
        seen.append((context.tool_call.call_id, context.tool_call.name))
        return "seen"

    async def hear(event: Any) -> None:
        seen.append((event["tool_call"].call_id, event["tool_call"].name))

    tool = lib.FunctionTool(
        name="look",
        description="Look.",
        params_json_schema={"type": "object", "properties": {}, "additionalProperties": False},
        on_invoke_tool=look,
        needs_approval=True,
    )
    done = [lib.assistant_message("done")]
    inner = lib.Agent(
        name="inner", model=lib.ScriptedModel([[lib.function_call("look", {}, call_id="c1")], done]), tools=[tool]
    )
    ask = [lib.function_call("ask", {"input": "go"}, call_id="c0")]
    outer = lib.Agent(
        name="outer", model=lib.ScriptedModel([ask, done]), tools=[inner.as_tool("ask", "Ask.", on_stream=hear)]
    )
    paused = await lib.Runner.run(outer, "hi")
    seen.clear()
    state = await lib.RunState.from_string(outer, paused.to_state().to_string())
    state.approve(state.get_interruptions()[0])
    assert (await lib.Runner.run(outer, state)).final_output == "done"
    assert set(seen) == {("c0", "ask"), ("c1", "look")}


async def test_a_call_of_a_hosted_tool_alone_is_not_the_answer(lib: Any) -> None:
    search = ResponseFunctionWebSearch(
        id="w", type="web_search_call", status="completed", action={"type": "search", "query": "q"}
    )
    model = lib.ScriptedModel([[search], [lib.assistant_message("found")]])
    result = await lib.Runner.run(lib.Agent(name="a", model=model, tools=[lib.WebSearchTool()]), "x")
    assert result.final_output == "found"
    assert [item.type for item in result.new_items] == ["tool_call_item", "message_output_item"]
