"""Servers that break the protocol: what they do to a connection, to other calls, and to the model."""

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from shops import Journal, stdio, until

from standfast import Agent, Runner, RunState, UserError
from standfast.mcp import MCPCallUncertain, MCPInvalidResponse, MCPUnavailable, MCPUtil
from standfast.testing import ScriptedModel, assistant_message, function_call


def said(text: str | bytes, **more: Any) -> dict[str, Any]:
    data = text.encode() if isinstance(text, str) else text
    return {"code": base64.b64encode(data).decode(), **more}


def answer(number: Any, text: str) -> str:
    result = {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": result}) + "\n"


@pytest.mark.parametrize(
    "garbage",
    [
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
    ],
    ids=range(14),
)
async def test_what_makes_no_sense_is_passed_over(journal: Journal, garbage: str | bytes) -> None:
    async with stdio(journal) as server:
        result = await server.call_tool("say", said(garbage))
        assert result.content[0].text == "said"
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
    assert len(journal.pids()) == 1


async def test_an_answer_to_another_call_is_no_answer_to_this_one(journal: Journal) -> None:
    async with stdio(journal) as server:
        server.client_session_timeout_seconds = 0.5
        with pytest.raises(MCPCallUncertain, match="did not answer within"):
            await server.call_tool("say", said(answer(4711, "wrong"), answer=False))


async def test_an_answer_that_comes_too_late_is_nobodys(journal: Journal) -> None:
    async with stdio(journal) as server:
        await server.list_tools()
        late = asyncio.create_task(server.call_tool("hang", {}))
        await until(lambda: journal.count("hang"))
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        await until(lambda: journal.count("cancelled"))
        for number in range(10):
            await server.call_tool("say", said(answer(number, "late")))
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"


@pytest.mark.parametrize(
    "result", [{"content": "text"}, {"content": [{"type": "text"}]}, {"content": [{"type": "smell"}]}, {"tools": []}]
)
async def test_a_result_that_is_none_is_reported_as_that(journal: Journal, result: Any) -> None:
    async with stdio(journal) as server:
        await server.list_tools()
        with pytest.raises(MCPInvalidResponse, match="gave an answer that breaks the protocol") as caught:
            await server.call_tool("answer", {"result": result})
        assert "may have had an effect" in str(caught.value)
        assert len(str(caught.value)) < 1000


async def test_a_call_that_was_answered_stays_so_whatever_the_list_of_tools_does(journal: Journal) -> None:
    async with stdio(journal, "shy", client_session_timeout_seconds=2) as server:
        assert (await server.call_tool("refund", {"order": "A"})).content[0].text == "refunded 1 for A"
    assert journal.calls() == ["refund A"]


async def test_a_long_result_arrives(journal: Journal) -> None:
    async with stdio(journal) as server:
        result = await server.call_tool("long", {"megabytes": 8})
        assert len(result.content[0].text) == 8 * 2**20


async def test_a_line_without_end_is_cut_and_the_server_started_again(journal: Journal) -> None:
    async with stdio(journal) as server:
        with pytest.raises(MCPCallUncertain):
            await server.call_tool("long", {"megabytes": 65})
        await server.call_tool("stock", {"item": "tea"})
    assert len(journal.pids()) == 2


async def test_arguments_that_cannot_be_sent_leave_the_connection_alone(journal: Journal) -> None:
    async with stdio(journal) as server:
        await server.list_tools()
        slow = asyncio.create_task(server.call_tool("hang", {}))
        await until(lambda: journal.count("hang"))
        with pytest.raises(UserError, match="cannot be asked to call 'stock'"):
            await server.call_tool("stock", {"item": "\ud800"})
        with pytest.raises(UserError, match="cannot be asked to call 'stock'"):
            await server.call_tool("stock", {"item": object()})
        assert not slow.done()
        slow.cancel()
        await asyncio.wait({slow})
    assert len(journal.pids()) == 1


async def test_a_model_that_writes_half_a_character_is_told(journal: Journal) -> None:
    calls = [function_call("stock", '{"item": "\\ud800"}', call_id="1")]
    async with stdio(journal) as server:
        model = ScriptedModel([calls, [assistant_message("done")]])
        result = await Runner.run(Agent("clerk", mcp_servers=[server], model=model), "stock?")
    assert "cannot be asked to call 'stock'" in result.new_items[1].output
    assert len(journal.pids()) == 1


async def test_a_storm_of_changes_stops_nobody(journal: Journal) -> None:
    async with stdio(journal, cache_tools_list=True) as server:
        await server.list_tools()
        storm = asyncio.create_task(server.call_tool("changed", {"times": 5000}))
        for _ in range(5):
            assert "stock" in [tool.name for tool in await server.list_tools()]
        await storm
        assert "stock" in [tool.name for tool in await server.list_tools()]
    assert len(journal.pids()) == 1


async def test_a_list_without_end_is_refused(journal: Journal) -> None:
    async with stdio(journal, "endless") as server:
        with pytest.raises(MCPInvalidResponse, match="list has no end"):
            await server.list_tools()
    assert journal.count("list") < 5


def offering(tmp_path: Path, journal: Journal, tools: list[Any], **options: Any) -> Any:
    path = tmp_path / "tools.json"
    path.write_text(json.dumps(tools))
    return stdio(journal, env={"TOOLS": str(path)}, **options)


def tool(name: str, schema: Any = None) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"} if schema is None else schema}


async def test_a_name_that_no_model_can_say_is_spelled_plainly(tmp_path: Path, journal: Journal) -> None:
    odd = ["two words", "größe", "", "x" * 200, "files.read"]
    async with offering(tmp_path, journal, [tool(name) for name in odd]) as server:
        agent = Agent("clerk", mcp_servers=[server])
        *_, words, size, empty, long, dotted = [found.name for found in await agent.get_mcp_tools(None)]
        assert words.startswith("two_words_")
        assert size.startswith("gr_e_")
        assert dotted == "files.read"
        assert all(name.isascii() and 0 < len(name) <= 64 for name in (words, size, empty, long))
        model = ScriptedModel([[function_call(words, {}, call_id="1")], [assistant_message("done")]])
        result = await Runner.run(agent.clone(model=model), "call it")
        assert "there is no two words" in str(result.new_items[1].output)  # the server was asked by its own name


BROKEN = [
    tool("odd", {"type": "array"}),
    tool("odd", {"type": ["object", "null"]}),
    tool("odd", {"type": "object", "properties": 3}),
    tool("odd", "x"),
    {"name": "odd"},
    {"inputSchema": {}},
    7,
]


@pytest.mark.parametrize("broken", BROKEN, ids=range(len(BROKEN)))
async def test_a_list_that_breaks_the_protocol_is_refused(tmp_path: Path, journal: Journal, broken: Any) -> None:
    async with offering(tmp_path, journal, [broken]) as server:
        with pytest.raises(
            MCPInvalidResponse, match="list its tools and gave an answer that breaks the protocol: tools"
        ) as one:
            await server.list_tools()
        assert len(str(one.value)) < 1000


async def test_a_tool_that_is_listed_twice_is_offered_once(tmp_path: Path, journal: Journal) -> None:
    async with offering(tmp_path, journal, [tool("stock")]) as server:
        model = ScriptedModel([[assistant_message("done")]])
        with pytest.warns(UserWarning, match="more than one tool"):
            await Runner.run(Agent("clerk", mcp_servers=[server], model=model), "hello")
        assert [found.name for found in model.calls[0].tools].count("stock") == 1
        with pytest.raises(UserError, match="'shop' lists the tool 'stock' twice"):
            await MCPUtil.get_all_function_tools([server], False, None, Agent("clerk"))


async def test_ten_thousand_tools_are_offered_and_saved_runs_find_theirs(tmp_path: Path, journal: Journal) -> None:
    many = [tool(f"tool_{number}") for number in range(10_000)]
    async with offering(tmp_path, journal, many, cache_tools_list=True, require_approval={"stock": "always"}) as server:
        model = ScriptedModel([[function_call("stock", {"item": "tea"}, call_id="1")], [assistant_message("done")]])
        agent = Agent("clerk", mcp_servers=[server], model=model)
        begun = time.process_time()
        state = (await Runner.run(agent, "stock?")).to_state()
        state = await RunState.from_string(agent, state.to_string())
        state.approve(state.get_interruptions()[0])
        result = await Runner.run(agent, state)
        assert time.process_time() - begun < 8
    assert result.final_output == "done"
    assert len(model.calls[0].tools) > 10_000


async def test_a_server_that_dies_while_everybody_calls_loses_no_call_without_a_word(journal: Journal) -> None:
    async with stdio(journal) as server:
        await server.list_tools()
        orders = [("refund", f"R{number}") for number in range(8)] + [("die", f"D{number}") for number in range(3)]
        orders.sort(key=lambda order: order[1][1:])
        calls = [server.call_tool(name, {"order": order}) for name, order in orders]
        ended = await asyncio.gather(*calls, return_exceptions=True)
    for (name, order), outcome in zip(orders, ended, strict=True):
        made = journal.count(f"{name} {order}")
        if isinstance(outcome, MCPUnavailable):
            assert made == 0
        elif isinstance(outcome, MCPCallUncertain):
            assert made <= 1
        else:
            assert (outcome.content[0].text, made) == (f"refunded 1 for {order}", 1)
