"""A server as a child process: what it offers, how it ends, and what becomes of calls that it does not answer."""

import asyncio
import base64
import subprocess
import sys
import time
from pathlib import Path

import pytest
from shops import PLAIN, REAL, Journal, Mall, alive, asking, running, stdio, until

from standfast import UserError
from standfast.mcp import MCPCallRefused, MCPCallUncertain, MCPNotConnected, MCPServerStdio, MCPUnavailable

ROOT = Path(__file__).parent.parent.parent


async def test_tools_are_listed_and_called(journal: Journal) -> None:
    async with stdio(journal, script=REAL) as server:
        tools = {tool.name: tool for tool in await server.list_tools()}
        assert tools["stock"].annotations.read_only_hint
        result = await server.call_tool("stock", {"item": "tea"})
        assert result.content[0].text == "shop has 3 of tea"
    assert not any(map(alive, journal.pids()))


async def test_prompts_and_resources_are_read(mall: Mall) -> None:
    async with mall.server() as server:
        assert [prompt.name for prompt in (await server.list_prompts()).prompts] == ["greet"]
        prompt = await server.get_prompt("greet", {"name": "Ann"})
        assert prompt.messages[0].content.text == "Greet Ann warmly."
        assert [str(found.uri) for found in (await server.list_resources()).resources] == ["shop://terms"]
        templates = (await server.list_resource_templates()).resource_templates
        assert [found.uri_template for found in templates] == ["shop://orders/{order}"]
        assert (await server.read_resource("shop://orders/7")).contents[0].text == "order 7"


async def test_any_task_may_connect_and_another_let_go(journal: Journal) -> None:
    server = stdio(journal)
    await asyncio.create_task(server.connect())
    await asyncio.create_task(server.connect())
    await asyncio.create_task(server.call_tool("stock", {"item": "tea"}))
    await asyncio.gather(*[asyncio.create_task(server.cleanup()) for _ in range(3)])
    await server.cleanup()
    assert len(journal.pids()) == 1
    assert not any(map(alive, journal.pids()))


async def test_a_server_may_be_connected_again_after_it_was_let_go(journal: Journal) -> None:
    server = stdio(journal)
    for _ in range(2):
        async with server:
            await server.call_tool("stock", {"item": "tea"})
    assert len(journal.pids()) == 2
    with pytest.raises(MCPNotConnected, match="'shop' is not connected"):
        await server.call_tool("stock", {"item": "tea"})
    with pytest.raises(MCPNotConnected):
        await server.list_tools()


async def test_a_server_that_does_not_end_is_killed_in_time(journal: Journal) -> None:
    async with stdio(journal, "stubborn") as server:
        await server.list_tools()
        begun = time.monotonic()
    assert time.monotonic() - begun < 6
    assert not any(map(alive, journal.pids()))


async def test_what_a_server_has_started_ends_with_it(journal: Journal) -> None:
    async with stdio(journal, "family"):
        assert len(journal.pids()) == 2
    await until(lambda: not any(map(running, journal.pids())))


async def test_letting_go_while_a_dead_server_is_replaced_leaves_no_process(journal: Journal) -> None:
    server = stdio(journal, "slow")
    await server.connect()
    with pytest.raises(MCPCallUncertain):
        await server.call_tool("mute", {})
    call = asyncio.create_task(server.call_tool("stock", {"item": "tea"}))
    await until(lambda: journal.count("leaving"))  # the call is letting go of what is left of the old server
    await server.cleanup()
    with pytest.raises(MCPNotConnected):
        await call
    assert len(journal.pids()) == 1
    assert not any(map(alive, journal.pids()))


async def test_letting_go_twice_at_once_of_a_slow_server_waits_for_its_end(journal: Journal) -> None:
    server = stdio(journal, "slow")
    await server.connect()
    first = asyncio.create_task(server.cleanup())
    await until(lambda: journal.count("leaving"))
    await server.cleanup()
    assert not any(map(alive, journal.pids()))
    await first


async def test_letting_go_that_is_cancelled_still_ends_the_process(journal: Journal) -> None:
    server = stdio(journal, "stubborn")
    await server.connect()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await server.cleanup()
    await server.cleanup()
    assert not any(map(alive, journal.pids()))


async def test_a_connect_that_is_cancelled_leaves_no_process(journal: Journal) -> None:
    server = stdio(journal, "silent")
    task = asyncio.create_task(server.connect())
    await until(lambda: journal.pids())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(alive, journal.pids()))


async def test_letting_go_while_it_connects_ends_the_connecting(journal: Journal) -> None:
    server = stdio(journal, "silent")
    task = asyncio.create_task(server.connect())
    await until(lambda: journal.pids())
    await server.cleanup()
    with pytest.raises(MCPNotConnected):
        await task
    assert not any(map(alive, journal.pids()))


async def test_a_server_that_does_not_answer_is_unavailable(journal: Journal) -> None:
    with pytest.raises(MCPUnavailable, match=r"'shop' cannot be reached: it did not answer within 0\.5 seconds"):
        await stdio(journal, "silent", client_session_timeout_seconds=0.5).connect()
    assert not any(map(alive, journal.pids()))


async def test_a_server_that_crashes_at_the_start_is_quoted(journal: Journal) -> None:
    with pytest.raises(MCPUnavailable, match="exit code 1; it said: no licence found"):
        await stdio(journal, "crash").connect()


async def test_a_command_that_does_not_exist_is_named() -> None:
    with pytest.raises(MCPUnavailable, match="no-such-command"):
        await MCPServerStdio({"command": "no-such-command"}).connect()


async def test_a_server_killed_in_a_call_gives_a_typed_error_and_is_started_again(journal: Journal) -> None:
    async with stdio(journal) as server:
        await server.list_tools()
        with pytest.raises(MCPCallUncertain) as caught:
            await server.call_tool("die", {"order": "A7"})
        assert (caught.value.server_name, caught.value.tool_name) == ("shop", "die")
        assert "ended by SIGKILL" in str(caught.value)
        assert "whether it did is unknown" in str(caught.value)
        result = await server.call_tool("stock", {"item": "tea"})
        assert result.content[0].text == "shop has 3 of tea"
    assert journal.count("die A7") == 1
    assert len(journal.pids()) == 2


async def test_a_call_that_may_have_happened_is_not_made_again(journal: Journal) -> None:
    async with stdio(journal, max_retry_attempts=3, retry_backoff_seconds_base=0.01) as server:
        await server.list_tools()
        with pytest.raises(MCPCallUncertain):
            await server.call_tool("die", {"order": "A7"})
    assert journal.count("die A7") == 1


async def test_a_call_that_only_reads_is_made_again(journal: Journal) -> None:
    async with stdio(journal, max_retry_attempts=1, retry_backoff_seconds_base=0.01) as server:
        await server.list_tools()
        result = await server.call_tool("die_once", {})
        assert result.content[0].text == "survived"
    assert journal.count("die_once") == 2


async def test_calls_at_the_same_time_share_the_fate_of_the_process(journal: Journal) -> None:
    async with stdio(journal) as server:
        calls = [server.call_tool("hang", {}), server.call_tool("die", {"order": "B"})]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in ended] == [MCPCallUncertain, MCPCallUncertain]
        again = [server.call_tool("stock", {"item": str(number)}) for number in range(5)]
        assert len(await asyncio.gather(*again)) == 5
    assert len(journal.pids()) == 2


async def test_a_call_that_takes_too_long_ends_and_the_server_goes_on(journal: Journal) -> None:
    async with stdio(journal) as server:
        server.client_session_timeout_seconds = 0.5
        with pytest.raises(MCPCallUncertain, match=r"did not answer within 0\.5 seconds"):
            await server.call_tool("hang", {})
        server.client_session_timeout_seconds = 20
        await server.call_tool("stock", {"item": "tea"})
    assert len(journal.pids()) == 1


async def test_letting_go_ends_the_calls_under_way(journal: Journal) -> None:
    server = stdio(journal, max_retry_attempts=-1)
    await server.connect()
    call = asyncio.create_task(server.call_tool("hang", {}))
    await until(lambda: journal.count("hang"))
    await server.cleanup()
    with pytest.raises(MCPCallUncertain):
        await call


async def test_a_flood_on_the_standard_error_stops_nobody(journal: Journal) -> None:
    async with stdio(journal) as server:
        result = await server.call_tool("flood", {"megabytes": 8})
        assert result.content[0].text == "flooded"
        assert len(server._process.stderr_tail) <= 2000


async def test_what_is_no_message_is_passed_over(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    async with stdio(journal, "noisy") as server:
        await server.call_tool("stock", {"item": "tea"})
    assert "welcome to the shop" in caplog.text


async def test_a_server_with_an_encoding_of_its_own_is_understood(journal: Journal) -> None:
    server = stdio(journal)
    server.params["encoding"] = "latin-1"
    async with server:
        assert (await server.call_tool("stock", {"item": "Öl für 3 €"})).content[0].text == "shop has 3 of Öl für 3 €"
        umlaut = '{"jsonrpc": "2.0", "id": 1, "result": {"content": [], "note": "Öl"}}\n'
        await server.call_tool("say", {"code": base64.b64encode(umlaut.encode("latin-1")).decode()})


@pytest.mark.parametrize("encoding", ["utf-16", "no-such-encoding"])
def test_an_encoding_that_cannot_hold_lines_is_refused(encoding: str) -> None:
    with pytest.raises(UserError, match="encoding must be utf-8 or another superset of ASCII"):
        MCPServerStdio({"command": "x", "encoding": encoding})


async def test_what_the_server_refuses_is_reported_as_that(journal: Journal) -> None:
    async with stdio(journal) as server:
        with pytest.raises(MCPCallRefused, match="'shop' was asked to give the prompt 'nothing' and refused: "):
            await server.get_prompt("nothing")
        assert (await server.call_tool("nothing", {})).is_error


async def test_a_list_that_changed_is_fetched_again(journal: Journal) -> None:
    heard = []

    async def listen(message: object) -> None:
        heard.append(message.method)

    async with stdio(journal, cache_tools_list=True, message_handler=listen) as server:
        first = await server.list_tools()
        assert await server.list_tools() == first
        await server.call_tool("grow", {})
        await until(lambda: heard)
        assert "fresh" in [tool.name for tool in await server.list_tools()]
    assert heard == ["notifications/tools/list_changed"]


async def test_a_kept_list_is_not_asked_for_again_until_it_is_invalidated(journal: Journal) -> None:
    async with stdio(journal, cache_tools_list=True) as server:
        assert server.cached_tools is None
        first = await server.list_tools(*asking())
        assert (await server.list_tools())[0] is first[0]
        server.invalidate_tools_cache()
        assert (await server.list_tools())[0] is not first[0]


def test_a_program_that_forgets_its_server_leaves_no_process(journal: Journal) -> None:
    program = (
        "import asyncio, sys; from standfast.mcp import MCPServerStdio\n"
        "async def main():\n"
        f"    server = MCPServerStdio({{'command': sys.executable, 'args': [{PLAIN!r}, 'stubborn'],"
        f" 'env': {{'JOURNAL': {str(journal.path)!r}}}}}, client_session_timeout_seconds=20)\n"
        "    await server.connect()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=40,
    )
    assert done.returncode == 0, done.stderr
    assert len(journal.pids()) == 1
    assert not any(map(alive, journal.pids()))
