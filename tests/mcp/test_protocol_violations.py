"""Servers that violate the protocol: the effect on the connection, on other calls and on the model."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from factories.mcp import ServerLog, stdio_server, wait_until
from standfast import Agent, Runner, RunState, UserError
from standfast.mcp import MCPCallUncertain, MCPInvalidResponse, MCPUnavailable, MCPUtil
from standfast.testing import ScriptedModel, assistant_message, function_call


def encode_raw(text: str | bytes, **fields: Any) -> dict[str, Any]:
    """Return the arguments of the tool ``write_raw``."""
    data = text.encode() if isinstance(text, str) else text
    return {"code": base64.b64encode(data).decode(), **fields}


def make_response(number: Any, text: str) -> str:
    result = {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n"


GARBAGE: list[str | bytes] = [
    "no JSON at all\n",
    "[]\n42\nnull\n{}\n",
    '{"jsonrpc": "2.0", "id": 99999, "result": {}}\n',
    '{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "?"}}\n',
    '{"jsonrpc": "2.0", "id": {"a": 1}, "result": {}}\n',
    '{"jsonrpc": "2.0", "method": "notifications/unheard/of", "params": {"x": [1]}}\n',
    '{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}}\n',
    '{"jsonrpc": "2.0", "id": 7, "method": "sampling/createMessage", "params": {}}\n',
    '{"jsonrpc": "2.0", "id": 7, "method": "no/such/method"}\n',
    "[" * 100_000 + "\n",
    '{"jsonrpc": "2.0", "id": 1, "result": {"text": "\\ud800"}}\n',
    b"caf\xe9\n",
    b"\xff\xfe\x00\n",
    "\n\n  \n",
]


async def test_lines_that_are_not_valid_messages_are_skipped(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        for garbage in GARBAGE:
            result = await server.call_tool("write_raw", encode_raw(garbage))
            assert result.content[0].text == "written", garbage
            result = await server.call_tool("stock", {"item": "tea"})
            assert result.content[0].text == "shop has 3 of tea", garbage
    assert len(log.pids()) == 1


async def test_a_response_with_another_id_does_not_end_the_call(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        server.client_session_timeout_seconds = 0.5
        with pytest.raises(MCPCallUncertain, match="did not answer within"):
            await server.call_tool("write_raw", encode_raw(make_response(4711, "wrong"), answer=False))


async def test_the_response_to_a_cancelled_call_is_ignored(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        await server.list_tools()
        cancelled = asyncio.create_task(server.call_tool("hang", {}))
        await wait_until(lambda: log.count("hang"))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await wait_until(lambda: log.count("cancelled"))
        for number in range(10):
            await server.call_tool("write_raw", encode_raw(make_response(number, "too late")))
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"


@pytest.mark.parametrize(
    "result", [{"content": "text"}, {"content": [{"type": "text"}]}, {"content": [{"type": "smell"}]}, {"tools": []}]
)
async def test_an_invalid_result_raises_a_typed_error(log: ServerLog, result: Any) -> None:
    async with stdio_server(log) as server:
        await server.list_tools()
        with pytest.raises(MCPInvalidResponse, match="sent an invalid response") as caught:
            await server.call_tool("return_raw", {"result": result})
        assert "may have had an effect" in str(caught.value)
        assert len(str(caught.value)) < 1000


async def test_a_call_does_not_depend_on_the_list_of_tools(log: ServerLog) -> None:
    async with stdio_server(log, "hang_on_list") as server:
        assert (await server.call_tool("refund", {"order": "A"})).content[0].text == "refunded 1 for A"
    assert log.calls() == ["refund A"]


async def test_a_long_result_arrives(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        result = await server.call_tool("long_text", {"megabytes": 3})
        assert len(result.content[0].text) == 3 * 2**20


async def test_arguments_that_cannot_be_encoded_do_not_affect_the_connection(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        await server.list_tools()
        slow = asyncio.create_task(server.call_tool("hang", {}))
        await wait_until(lambda: log.count("hang"))
        with pytest.raises(UserError, match="to call 'stock' cannot be encoded"):
            await server.call_tool("stock", {"item": "\ud800"})
        with pytest.raises(UserError, match="to call 'stock' cannot be encoded"):
            await server.call_tool("stock", {"item": object()})
        assert not slow.done()
        slow.cancel()
        await asyncio.wait({slow})
    assert len(log.pids()) == 1


async def test_the_model_gets_an_error_for_a_lone_surrogate(log: ServerLog) -> None:
    calls = [function_call("stock", '{"item": "\\ud800"}', call_id="1")]
    async with stdio_server(log) as server:
        model = ScriptedModel([calls, [assistant_message("done")]])
        result = await Runner.run(Agent("clerk", mcp_servers=[server], model=model), "stock?")
    assert result.new_items[1].output == "An error occurred while running the tool. Please try again."
    assert len(log.pids()) == 1


async def test_many_change_notifications_do_not_block(log: ServerLog) -> None:
    async with stdio_server(log, cache_tools_list=True) as server:
        await server.list_tools()
        notifications = asyncio.create_task(server.call_tool("notify_changes", {"times": 500}))
        for _ in range(5):
            assert "stock" in [tool.name for tool in await server.list_tools()]
        await notifications
        assert "stock" in [tool.name for tool in await server.list_tools()]
    assert len(log.pids()) == 1


async def test_a_list_with_more_pages_than_allowed_is_rejected(log: ServerLog) -> None:
    async with stdio_server(log, "endless_list", max_list_pages=2) as server:
        with pytest.raises(UserError, match="more than 2 pages"):
            await server.list_tools()
        assert server.cached_tools is None


async def test_an_endless_list_of_tools_is_rejected(log: ServerLog) -> None:
    async with stdio_server(log, "endless_list") as server:
        with pytest.raises(MCPInvalidResponse, match="list has no end"):
            await server.list_tools()
    assert log.count("list") < 5


def write_tools(tmp_path: Path, tools: list[Any]) -> Path:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(tools))
    return path


def offer_tools(tmp_path: Path, log: ServerLog, tools: list[Any], **options: Any) -> Any:
    """Declare a server that lists ``tools`` in addition to its own."""
    return stdio_server(log, env={"TOOLS": str(write_tools(tmp_path, tools))}, **options)


def make_tool(name: str, schema: Any = None) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"} if schema is None else schema}


async def test_a_name_that_models_cannot_use_is_replaced(tmp_path: Path, log: ServerLog) -> None:
    names = ["two words", "größe", "", "x" * 200, "files.read"]
    async with offer_tools(tmp_path, log, [make_tool(name) for name in names]) as server:
        agent = Agent("clerk", mcp_servers=[server])
        *_, words, size, empty, long, dotted = [tool.name for tool in await agent.get_mcp_tools(None)]
        assert words.startswith("two_words_")
        assert size.startswith("gr_e_")
        assert dotted == "files.read"
        assert all(name.isascii() and 0 < len(name) <= 64 for name in (words, size, empty, long))
        model = ScriptedModel([[function_call(words, {}, call_id="1")], [assistant_message("done")]])
        result = await Runner.run(agent.clone(model=model), "call it")
        assert "there is no two words" in str(result.new_items[1].output)  # the server gets its own name of the tool


INVALID_TOOLS = [
    make_tool("odd", {"type": "array"}),
    make_tool("odd", {"type": ["object", "null"]}),
    make_tool("odd", {"type": "object", "properties": 3}),
    make_tool("odd", "x"),
    {"name": "odd"},
    {"inputSchema": {}},
    7,
]


async def test_an_invalid_list_of_tools_is_rejected(tmp_path: Path, log: ServerLog) -> None:
    async with offer_tools(tmp_path, log, []) as server:
        for invalid in INVALID_TOOLS:
            write_tools(tmp_path, [invalid])
            with pytest.raises(
                MCPInvalidResponse, match="list its tools and sent an invalid response: tools"
            ) as caught:
                await server.list_tools()
            assert len(str(caught.value)) < 1000


async def test_a_tool_that_is_listed_twice_is_offered_once(tmp_path: Path, log: ServerLog) -> None:
    async with offer_tools(tmp_path, log, [make_tool("stock")]) as server:
        model = ScriptedModel([[assistant_message("done")]])
        with pytest.warns(UserWarning, match="more than one tool"):
            await Runner.run(Agent("clerk", mcp_servers=[server], model=model), "hello")
        assert [tool.name for tool in model.calls[0].tools].count("stock") == 1
        with pytest.raises(UserError, match="'shop' lists the tool 'stock' twice"):
            await MCPUtil.get_all_function_tools([server], False, None, Agent("clerk"))


async def approve_and_resume(tmp_path: Path, log: ServerLog, count: int) -> float:
    """Run an agent whose server has ``count`` further tools; return the CPU seconds."""
    tools = [make_tool(f"tool_{number}") for number in range(count)]
    async with offer_tools(tmp_path, log, tools, cache_tools_list=True, require_approval={"stock": "always"}) as server:
        model = ScriptedModel([[function_call("stock", {"item": "tea"}, call_id="1")], [assistant_message("done")]])
        agent = Agent("clerk", mcp_servers=[server], model=model)
        start = time.process_time()
        state = (await Runner.run(agent, "stock?")).to_state()
        state = await RunState.from_string(agent, state.to_string())
        state.approve(state.get_interruptions()[0])
        result = await Runner.run(agent, state)
    assert result.final_output == "done"
    assert len(model.calls[0].tools) > count
    return time.process_time() - start


async def test_a_thousand_tools_are_offered_and_a_saved_run_finds_its_tool(tmp_path: Path, log: ServerLog) -> None:
    await approve_and_resume(tmp_path, log, 1_000)


@pytest.mark.soak
async def test_the_cost_of_many_tools_grows_linearly(tmp_path: Path, log: ServerLog) -> None:
    small = await approve_and_resume(tmp_path, log, 1_000)
    assert await approve_and_resume(tmp_path, log, 10_000) < 40 * small


async def test_every_call_to_a_server_that_dies_has_a_result_or_a_typed_error(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        await server.list_tools()
        orders = [("refund", f"R{number}") for number in range(8)] + [("die", f"D{number}") for number in range(3)]
        orders.sort(key=lambda order: order[1][1:])
        calls = [server.call_tool(name, {"order": order}) for name, order in orders]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for (name, order), outcome in zip(orders, outcomes, strict=True):
        made = log.count(f"{name} {order}")
        if isinstance(outcome, MCPUnavailable):
            assert made == 0
        elif isinstance(outcome, MCPCallUncertain):
            assert made <= 1
        else:
            assert (outcome.content[0].text, made) == (f"refunded 1 for {order}", 1)
