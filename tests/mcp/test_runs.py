"""MCP servers in runs: run modes, approvals, filters, names, contents, failures and cancellation."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from factories.mcp import SdkServers, ServerLog, stdio_server, wait_until
from factories.runs import RUN_MODES, Scenario
from standfast import Agent, Runner, RunState, UserError, function_tool
from standfast.mcp import MCPCallUncertain, MCPUtil, create_static_tool_filter
from standfast.testing import ScriptedModel, assistant_message, function_call


def script(*calls: tuple[str, dict[str, Any]]) -> ScriptedModel:
    steps = [[function_call(name, arguments, call_id=f"c{n}")] for n, (name, arguments) in enumerate(calls)]
    return ScriptedModel([*steps, [assistant_message("done")]])


def outputs(result: Any) -> list[Any]:
    values = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    return [value["text"] if isinstance(value, dict) else value for value in values]


@pytest.mark.parametrize("way", RUN_MODES)
async def test_a_run_calls_the_tools_of_servers_in_every_way(log: ServerLog, way: str) -> None:
    def approve_all(state: RunState) -> None:
        for item in state.get_interruptions():
            state.approve(item)

    async with stdio_server(log, require_approval={"stock": "always"}) as server:
        model = script(("weigh", {"item": "tea"}), ("stock", {"item": "tea"}))
        seen = await RUN_MODES[way](
            Scenario(Agent("clerk", mcp_servers=[server], model=model), model, decide=approve_all), None
        )
    texts = [item[2]["text"] for item in seen.items if item[0] == "tool_call_output_item"]
    assert "250" in texts[0]
    assert (texts[1:], seen.final) == (["shop has 3 of tea"], "done")
    assert seen.interruptions >= 1


async def test_a_paused_run_can_be_resumed_with_another_server_process(log: ServerLog) -> None:
    def clerk(server: Any, model: ScriptedModel) -> Agent[Any]:
        config = {"include_server_in_tool_names": True}
        return Agent("clerk", mcp_servers=[server], mcp_config=config, model=model)

    async with stdio_server(log, require_approval="always") as server:
        agent = clerk(server, script(("mcp_shop__refund", {"order": "A7"})))
        result = await Runner.run(agent, "refund A7")
        (interruption,) = result.interruptions
        assert interruption.qualified_name == "mcp_shop__refund"
        saved = result.to_state().to_string()
    assert not log.any_process_exists()
    async with stdio_server(log, require_approval="always") as server:
        agent = clerk(server, ScriptedModel([[assistant_message("done")]]))
        state = await RunState.from_string(agent, saved)
        state.approve(state.get_interruptions()[0], arguments={"order": "B8", "amount": 2})
        result = await Runner.run(agent, state)
    assert outputs(result) == ["refunded 2 for B8"]
    assert log.calls() == ["refund B8"]


async def test_a_rejected_call_is_not_made(log: ServerLog) -> None:
    async with stdio_server(log, require_approval=True) as server:
        agent = Agent("clerk", mcp_servers=[server], model=script(("refund", {"order": "A7"})))
        state = (await Runner.run(agent, "refund A7")).to_state()
        state.reject(state.get_interruptions()[0], rejection_message="not on Sundays")
        result = await Runner.run(agent, state)
    assert outputs(result) == ["not on Sundays"]
    assert not log.count("refund A7")


async def test_a_nested_agent_is_interrupted_at_the_top(log: ServerLog) -> None:
    async with stdio_server(log, require_approval="always") as server:
        inner = Agent("clerk", mcp_servers=[server], model=script(("refund", {"order": "A7"})))
        tool = inner.as_tool("clerk", "Does it.")
        agent = Agent("boss", tools=[tool], model=script(("clerk", {"input": "refund A7"})))
        result = await Runner.run(agent, "refund A7")
        assert [item.tool_name for item in result.interruptions] == ["refund"]
        state = await RunState.from_string(agent, result.to_state().to_string())
        state.approve(state.get_interruptions()[0])
        result = await Runner.run(agent, state)
    assert result.final_output == "done"
    assert log.count("refund A7") == 1


async def get_offered_tools(server: Any, **options: Any) -> list[str]:
    model = ScriptedModel([[assistant_message("done")]])
    await Runner.run(Agent("clerk", mcp_servers=[server], model=model, **options), "hello")
    return [tool.name for tool in model.calls[0].tools]


async def test_a_static_filter_selects_tools_by_name(log: ServerLog) -> None:
    only = create_static_tool_filter(allowed_tool_names=["stock", "refund"], blocked_tool_names=["refund"])
    async with stdio_server(log, tool_filter=only) as server:
        assert await get_offered_tools(server) == ["stock"]
    assert create_static_tool_filter() is None


async def test_a_filter_function_gets_the_agent_and_the_annotations(
    log: ServerLog, caplog: pytest.LogCaptureFixture
) -> None:
    async def is_read_only(context: Any, tool: Any) -> bool:
        assert (context.agent.name, context.server_name) == ("clerk", "shop")
        if tool.name == "broken":
            raise ValueError("undecided")
        return tool.annotations is not None and bool(tool.annotations.read_only_hint)

    async with stdio_server(log, tool_filter=is_read_only) as server:
        assert await get_offered_tools(server) == ["stock", "die_once", "long_text"]
        assert "failed for the tool 'broken'" in caplog.text
        with pytest.raises(UserError, match="pass a run_context and an agent"):
            await server.list_tools()


async def test_tools_of_the_same_name_need_the_name_of_their_server(log: ServerLog) -> None:
    only = create_static_tool_filter(allowed_tool_names=["stock"])
    async with (
        stdio_server(log, name="east", tool_filter=only) as east,
        stdio_server(log, name="west", tool_filter=only) as west,
    ):
        agent = Agent("clerk", mcp_servers=[east, west], model=script(("stock", {"item": "tea"})))
        with pytest.raises(UserError, match="several MCP servers of the agent 'clerk' have a tool named stock"):
            await Runner.run(agent, "stock?")
        model = script(("mcp_east__stock", {"item": "tea"}), ("mcp_west__stock", {"item": "tea"}))
        agent = agent.clone(mcp_config={"include_server_in_tool_names": True}, model=model)
        assert outputs(await Runner.run(agent, "stock?")) == ["east has 3 of tea", "west has 3 of tea"]


async def test_a_server_cannot_replace_a_tool_of_the_agent(log: ServerLog) -> None:
    @function_tool
    def stock(item: str) -> str:
        return "mine"

    async with stdio_server(log) as server:
        agent = Agent("clerk", tools=[stock], mcp_servers=[server], model=script(("stock", {"item": "tea"})))
        with pytest.warns(UserWarning, match="more than one tool"):
            assert outputs(await Runner.run(agent, "stock?")) == ["mine"]


async def test_every_kind_of_content_is_converted(sdk_servers: SdkServers) -> None:
    async with sdk_servers.server("json") as server:
        agent = Agent(
            "clerk", mcp_servers=[server], model=script(("gallery", {}), ("broken", {}), ("weigh", {"item": "tea"}))
        )
        result = await Runner.run(agent, "look")
    items = [item.raw_item["output"] for item in result.new_items if item.type == "tool_call_output_item"]
    text, picture, sound, note, bill, link = items[0]
    assert (text["text"], note["text"]) == ("look", "a note")
    assert picture == {"type": "input_image", "image_url": "data:image/png;base64,Ynl0ZXM="}
    assert sound == {"type": "input_file", "file_data": "data:audio/wav;base64,Ynl0ZXM=", "filename": "audio.wav"}
    assert bill["filename"] == "bill.pdf"
    assert link["text"] == "[resource terms at shop://terms]"
    assert "the drawer is stuck" in items[1][0]["text"]
    assert '"grams": 250' in items[2][0]["text"]


async def test_structured_content_is_used_on_request(sdk_servers: SdkServers) -> None:
    async with sdk_servers.server("json", use_structured_content=True) as server:
        agent = Agent("clerk", mcp_servers=[server], model=script(("weigh", {"item": "tea"})))
        assert outputs(await Runner.run(agent, "weigh")) == ['{"item": "tea", "grams": 250}']


async def test_metadata_is_sent_and_custom_data_extracted(sdk_servers: SdkServers) -> None:
    resolved, extracted = [], []

    def resolver(context: Any) -> dict[str, Any]:
        resolved.append((context.server_name, context.tool_name, context.arguments))
        return {"tenant": context.run_context.context["tenant"]}

    def extractor(context: Any) -> dict[str, Any]:
        extracted.append((context.tool_name, context.tool_display_name, context.is_error, context.tool_output["text"]))
        return {"from": context.server_name}

    async with sdk_servers.server(name="shop", tool_meta_resolver=resolver, custom_data_extractor=extractor) as server:
        agent = Agent("clerk", mcp_servers=[server], model=script(("read_meta", {})))
        result = await Runner.run(agent, "who am I?", context={"tenant": "acme"})
    assert outputs(result) == ["acme"]
    assert resolved == [("shop", "read_meta", {})]
    assert extracted == [("read_meta", "read_meta", False, "acme")]
    (item,) = [item for item in result.new_items if item.type == "tool_call_output_item"]
    assert item.custom_data == {"from": "shop"}


async def test_the_model_gets_the_error_of_a_server_that_died_and_the_run_continues(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        agent = Agent("clerk", mcp_servers=[server], model=script(("die", {"order": "A"}), ("stock", {"item": "tea"})))
        died, stock = outputs(await Runner.run(agent, "try"))
    assert died == "An error occurred while running the tool. Please try again."
    assert stock == "shop has 3 of tea"
    assert log.count("die A") == 1


@pytest.mark.parametrize("where", ["server", "agent"])
async def test_without_an_error_function_the_run_ends_with_the_typed_error(log: ServerLog, where: str) -> None:
    options = {"failure_error_function": None} if where == "server" else {}
    async with stdio_server(log, **options) as server:
        config = {"failure_error_function": None} if where == "agent" else {}
        agent = Agent("clerk", mcp_servers=[server], mcp_config=config, model=script(("die", {"order": "A"})))
        with pytest.raises(MCPCallUncertain) as caught:
            await Runner.run(agent, "try")
    assert caught.value.run_data.state is not None


async def test_a_cancelled_run_leaves_no_process(log: ServerLog) -> None:
    async def work() -> None:
        async with stdio_server(log) as server:
            await Runner.run(Agent("clerk", mcp_servers=[server], model=script(("hang", {}))), "wait")

    task = asyncio.create_task(work())
    await wait_until(lambda: log.count("hang"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not log.any_process_exists()


async def test_read_only_tools_are_idempotent_and_schemas_strict_on_request(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        agent = Agent("clerk", mcp_servers=[server], mcp_config={"convert_schemas_to_strict": True})
        tools = {tool.name: tool for tool in await agent.get_mcp_tools(None)}
    assert (tools["stock"].idempotent, tools["refund"].idempotent) == (True, False)
    assert tools["refund"].strict_json_schema
    assert tools["refund"].params_json_schema["required"] == ["order", "amount"]
    assert tools["stock"].origin.mcp_server_name == "shop"


async def test_a_schema_that_grows_when_it_is_made_strict_is_used_as_it_is(log: ServerLog, tmp_path: Path) -> None:
    pairs = {
        f"L{level}": {
            "type": "object",
            "properties": {side: {"$ref": f"#/$defs/L{level + 1}", "description": side} for side in ("left", "right")},
        }
        for level in range(40)
    }
    top = {"$ref": "#/$defs/L0", "description": "top"}
    schema = {"type": "object", "properties": {"x": top}, "$defs": pairs | {"L40": {"type": "string"}}}
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": "grows", "inputSchema": schema}]))
    async with stdio_server(log, env={"TOOLS": str(tools)}) as server:
        agent = Agent("clerk", mcp_servers=[server], mcp_config={"convert_schemas_to_strict": True})
        (found,) = (tool for tool in await agent.get_mcp_tools(None) if tool.name == "grows")
    assert not found.strict_json_schema
    assert found.params_json_schema == schema


async def test_the_tools_of_several_servers_need_distinct_names(log: ServerLog) -> None:
    agent: Agent[Any] = Agent("clerk")
    async with stdio_server(log) as one, stdio_server(log) as other:
        with pytest.raises(UserError, match="'shop' and 'shop' both have a tool 'stock'"):
            await MCPUtil.get_all_function_tools([one, other], False, None, agent)
        found = await MCPUtil.get_all_function_tools(
            [one, other], False, None, agent, include_server_in_tool_names=True
        )
    names = [tool.name for tool in found]
    assert len(set(names)) == len(names)
    assert "mcp_shop__stock" in names


async def test_a_run_with_a_server_over_http(sdk_servers: SdkServers) -> None:
    async with sdk_servers.server() as server:
        agent = Agent("clerk", mcp_servers=[server], model=script(("stock", {"item": "tea"})))
        result = Runner.run_streamed(agent, "stock?")
        kinds = [event.type async for event in result.stream_events()]
        assert "run_item_stream_event" in kinds
        assert outputs(result) == ["shop has 3 of tea"]
