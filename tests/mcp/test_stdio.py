"""Servers in a child process: requests, the end of the process, and calls without a response."""

import asyncio
import base64
import subprocess
import sys
from pathlib import Path

import pytest

from factories.mcp import (
    PLAIN_SERVER,
    SDK_SERVER,
    TIMEOUT,
    ServerLog,
    is_running,
    make_run_arguments,
    stdio_server,
    wait_until,
)
from standfast import UserError
from standfast.mcp import MCPCallRefused, MCPCallUncertain, MCPNotConnected, MCPServerStdio, MCPUnavailable

ROOT = Path(__file__).parent.parent.parent


async def test_tools_are_listed_and_called(log: ServerLog) -> None:
    async with stdio_server(log, script=SDK_SERVER) as server:
        tools = {tool.name: tool for tool in await server.list_tools()}
        assert tools["stock"].annotations.read_only_hint
        result = await server.call_tool("stock", {"item": "tea"})
        assert result.content[0].text == "shop has 3 of tea"
    assert not log.any_process_exists()


async def test_one_task_may_connect_and_another_clean_up(log: ServerLog) -> None:
    server = stdio_server(log)
    await asyncio.create_task(server.connect())
    await asyncio.create_task(server.connect())
    await asyncio.create_task(server.call_tool("stock", {"item": "tea"}))
    await asyncio.gather(*[asyncio.create_task(server.cleanup()) for _ in range(3)])
    await server.cleanup()
    assert len(log.pids()) == 1
    assert not log.any_process_exists()


async def test_a_server_can_be_connected_again_after_cleanup(log: ServerLog) -> None:
    server = stdio_server(log)
    for _ in range(2):
        async with server:
            await server.call_tool("stock", {"item": "tea"})
    assert len(log.pids()) == 2
    with pytest.raises(MCPNotConnected, match="'shop' is not connected"):
        await server.call_tool("stock", {"item": "tea"})
    with pytest.raises(MCPNotConnected):
        await server.list_tools()


@pytest.mark.usefixtures("short_timeouts")
async def test_a_server_that_does_not_end_is_killed(log: ServerLog) -> None:
    async with stdio_server(log, "ignore_sigterm") as server:
        await server.list_tools()
    assert not log.any_process_exists()


@pytest.mark.usefixtures("short_timeouts")
async def test_child_processes_of_a_server_end_with_it(log: ServerLog) -> None:
    async with stdio_server(log, "with_child"):
        assert len(log.pids()) == 2
    await wait_until(lambda: not any(map(is_running, log.pids())))


@pytest.mark.usefixtures("long_timeouts")
async def test_cleanup_while_a_dead_server_is_replaced_leaves_no_process(log: ServerLog) -> None:
    server = stdio_server(log, "slow_exit")
    await server.connect()
    with pytest.raises(MCPCallUncertain):
        await server.call_tool("close_stdout", {})
    call = asyncio.create_task(server.call_tool("stock", {"item": "tea"}))
    await wait_until(lambda: log.count("leaving"))  # the call waits for the end of the old server
    cleanup = asyncio.create_task(server.cleanup())
    await asyncio.sleep(0)
    log.release()
    await cleanup
    with pytest.raises(MCPNotConnected):
        await call
    assert len(log.pids()) == 1
    assert not log.any_process_exists()


@pytest.mark.usefixtures("long_timeouts")
async def test_a_second_cleanup_waits_for_the_end_of_a_slow_server(log: ServerLog) -> None:
    server = stdio_server(log, "slow_exit")
    await server.connect()
    first = asyncio.create_task(server.cleanup())
    await wait_until(lambda: log.count("leaving"))
    second = asyncio.create_task(server.cleanup())
    await asyncio.sleep(0)
    assert not second.done()
    log.release()
    await second
    assert not log.any_process_exists()
    await first


@pytest.mark.usefixtures("short_timeouts")
async def test_a_cancelled_cleanup_still_ends_the_process(log: ServerLog) -> None:
    server = stdio_server(log, "ignore_sigterm")
    await server.connect()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await server.cleanup()
    await server.cleanup()
    assert not log.any_process_exists()


async def test_a_cancelled_connect_leaves_no_process(log: ServerLog) -> None:
    server = stdio_server(log, "no_response")
    task = asyncio.create_task(server.connect())
    await wait_until(lambda: log.pids())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not log.any_process_exists()


async def test_cleanup_cancels_a_connect_in_progress(log: ServerLog) -> None:
    server = stdio_server(log, "no_response")
    task = asyncio.create_task(server.connect())
    await wait_until(lambda: log.pids())
    await server.cleanup()
    with pytest.raises(MCPNotConnected):
        await task
    assert not log.any_process_exists()


async def test_a_server_that_does_not_answer_is_unavailable(log: ServerLog) -> None:
    with pytest.raises(MCPUnavailable, match=r"'shop' cannot be reached: it did not answer within 0\.5 seconds"):
        await stdio_server(log, "no_response", client_session_timeout_seconds=0.5).connect()
    assert not log.any_process_exists()


async def test_the_error_quotes_a_server_that_crashes_at_the_start(log: ServerLog) -> None:
    with pytest.raises(MCPUnavailable, match="exited with code 1; its standard error ends with: no licence found"):
        await stdio_server(log, "crash").connect()


async def test_the_error_names_a_command_that_does_not_exist() -> None:
    with pytest.raises(MCPUnavailable, match="no-such-command"):
        await MCPServerStdio({"command": "no-such-command"}).connect()


async def test_a_server_killed_in_a_call_raises_a_typed_error_and_is_started_again(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        await server.list_tools()
        with pytest.raises(MCPCallUncertain) as caught:
            await server.call_tool("die", {"order": "A7"})
        assert (caught.value.server_name, caught.value.tool_name) == ("shop", "die")
        assert "killed by SIGKILL" in str(caught.value)
        assert "the call may have had an effect" in str(caught.value)
        result = await server.call_tool("stock", {"item": "tea"})
        assert result.content[0].text == "shop has 3 of tea"
    assert log.count("die A7") == 1
    assert len(log.pids()) == 2


async def test_a_call_that_may_have_had_an_effect_is_not_repeated(log: ServerLog) -> None:
    async with stdio_server(log, max_retry_attempts=3, retry_backoff_seconds_base=0.01) as server:
        await server.list_tools()
        with pytest.raises(MCPCallUncertain):
            await server.call_tool("die", {"order": "A7"})
    assert log.count("die A7") == 1


async def test_a_read_only_call_is_repeated(log: ServerLog) -> None:
    async with stdio_server(log, max_retry_attempts=1, retry_backoff_seconds_base=0.01) as server:
        await server.list_tools()
        result = await server.call_tool("die_once", {})
        assert result.content[0].text == "survived"
    assert log.count("die_once") == 2


async def test_concurrent_calls_fail_with_the_process(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        calls = [server.call_tool("hang", {}), server.call_tool("die", {"order": "B"})]
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in ended] == [MCPCallUncertain, MCPCallUncertain]
        again = [server.call_tool("stock", {"item": str(number)}) for number in range(5)]
        assert len(await asyncio.gather(*again)) == 5
    assert len(log.pids()) == 2


async def test_a_call_that_times_out_does_not_end_the_server(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        server.client_session_timeout_seconds = 0.5
        with pytest.raises(MCPCallUncertain, match=r"did not answer within 0\.5 seconds"):
            await server.call_tool("hang", {})
        server.client_session_timeout_seconds = TIMEOUT
        await server.call_tool("stock", {"item": "tea"})
    assert len(log.pids()) == 1


async def test_cleanup_ends_pending_calls(log: ServerLog) -> None:
    server = stdio_server(log, max_retry_attempts=-1)
    await server.connect()
    call = asyncio.create_task(server.call_tool("hang", {}))
    await wait_until(lambda: log.count("hang"))
    await server.cleanup()
    with pytest.raises(MCPCallUncertain):
        await call


async def test_much_output_on_the_standard_error_does_not_block(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        result = await server.call_tool("flood_stderr", {"megabytes": 2})
        assert result.content[0].text == "flooded"
        assert len(server._process.stderr_tail) <= 2000


async def test_a_line_that_is_not_a_message_is_logged_and_skipped(
    log: ServerLog, caplog: pytest.LogCaptureFixture
) -> None:
    async with stdio_server(log, "noisy") as server:
        await server.call_tool("stock", {"item": "tea"})
    assert "welcome to the shop" in caplog.text


async def test_the_encoding_of_a_server_can_be_chosen(log: ServerLog) -> None:
    server = stdio_server(log)
    server.params["encoding"] = "latin-1"
    async with server:
        assert (await server.call_tool("stock", {"item": "Öl für 3 €"})).content[0].text == "shop has 3 of Öl für 3 €"
        umlaut = '{"jsonrpc": "2.0", "id": 1, "result": {"content": [], "note": "Öl"}}\n'
        await server.call_tool("write_raw", {"code": base64.b64encode(umlaut.encode("latin-1")).decode()})


@pytest.mark.parametrize("encoding", ["utf-16", "no-such-encoding"])
def test_an_encoding_that_is_not_a_superset_of_ascii_is_rejected(encoding: str) -> None:
    with pytest.raises(UserError, match="encoding must be utf-8 or another superset of ASCII"):
        MCPServerStdio({"command": "x", "encoding": encoding})


async def test_an_error_of_the_server_is_reported(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        with pytest.raises(
            MCPCallRefused, match="'shop' was asked to return the prompt 'nothing' and answered with an error: "
        ):
            await server.get_prompt("nothing")
        assert (await server.call_tool("nothing", {})).is_error


async def test_a_changed_list_of_tools_is_fetched_again(log: ServerLog) -> None:
    received = []

    async def handle(message: object) -> None:
        received.append(message.method)

    async with stdio_server(log, cache_tools_list=True, message_handler=handle) as server:
        first = await server.list_tools()
        assert await server.list_tools() == first
        await server.call_tool("add_tool", {})
        await wait_until(lambda: received)
        assert "fresh" in [tool.name for tool in await server.list_tools()]
    assert received == ["notifications/tools/list_changed"]


async def test_a_cached_list_is_used_until_it_is_invalidated(log: ServerLog) -> None:
    async with stdio_server(log, cache_tools_list=True) as server:
        assert server.cached_tools is None
        first = await server.list_tools(*make_run_arguments())
        assert (await server.list_tools())[0] is first[0]
        server.invalidate_tools_cache()
        assert (await server.list_tools())[0] is not first[0]


def test_a_program_that_does_not_clean_up_leaves_no_process(log: ServerLog) -> None:
    program = (
        "import asyncio, sys; from standfast.mcp import MCPServerStdio\n"
        "from standfast.mcp._client import stdio_transport\n"
        "stdio_transport.STDIN_CLOSE_TIMEOUT = stdio_transport.KILL_TIMEOUT = 0.3\n"
        "async def main():\n"
        f"    server = MCPServerStdio({{'command': sys.executable, 'args': [{PLAIN_SERVER!r}, 'ignore_sigterm'],"
        f" 'env': {{'SERVER_LOG': {str(log.path)!r}}}}}, client_session_timeout_seconds=60)\n"
        "    await server.connect()\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr
    assert len(log.pids()) == 1
    assert not log.any_process_exists()


@pytest.mark.parametrize("attempts", [-2, True, 1.5, "3"])
def test_an_invalid_number_of_retries_is_rejected(attempts: object) -> None:
    with pytest.raises(UserError, match="max_retry_attempts must be an integer >= -1"):
        MCPServerStdio({"command": "x"}, max_retry_attempts=attempts)
