"""A server over a real socket: sessions that are lost, servers that are gone, requests that were or were not sent."""

import asyncio
import signal
import time

import pytest
from shops import HttpShop, Journal, http_shop, until

from holdfast.mcp import MCPCallUncertain, MCPServerError, MCPServerSse, MCPServerStreamableHttp, MCPUnavailable


async def test_tools_are_listed_and_called_in_a_session(journal: Journal) -> None:
    async with http_shop(journal) as shop, shop.server() as server:
        assert server.session_id
        assert "stock" in [tool.name for tool in await server.list_tools()]
        calls = [server.call_tool("stock", {"item": str(number)}) for number in range(5)]
        texts = [result.content[0].text for result in await asyncio.gather(*calls)]
        assert texts == [f"shop has 3 of {number}" for number in range(5)]


@pytest.mark.parametrize("options", ["json_response=True", "stateless_http=True"])
async def test_servers_that_answer_in_other_ways_work_too(journal: Journal, options: str) -> None:
    async with http_shop(journal, options) as shop, shop.server() as server:
        await server.list_tools()
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"


async def test_nobody_at_the_address_is_unavailable(journal: Journal) -> None:
    shop = HttpShop(journal)
    with pytest.raises(MCPUnavailable, match="'web' cannot be reached: ConnectError"):
        await shop.server().connect()


async def test_a_refusal_names_the_status(journal: Journal) -> None:
    async with http_shop(journal) as shop:
        server = MCPServerStreamableHttp({"url": shop.url + "/elsewhere"}, name="web")
        with pytest.raises(MCPUnavailable, match="HTTP 404 Not Found"):
            await server.connect()


async def test_a_server_that_was_restarted_gets_a_new_session(journal: Journal) -> None:
    async with http_shop(journal) as shop, shop.server() as server:
        first = server.session_id
        await server.call_tool("refund", {"order": "A"})
        shop.kill()
        await shop.start()
        await server.call_tool("refund", {"order": "B"})
        assert server.session_id != first
    assert journal.lines() == ["refund A", "refund B"]


async def test_a_request_that_was_not_sent_is_sent_again(journal: Journal) -> None:
    async with (
        http_shop(journal) as shop,
        shop.server(max_retry_attempts=-1, retry_backoff_seconds_base=0.1, retry_backoff_seconds_max=0.2) as server,
    ):
        shop.kill()
        call = asyncio.create_task(server.call_tool("refund", {"order": "A"}))
        await asyncio.sleep(0.3)
        assert not call.done()
        await shop.start()
        assert (await call).content[0].text == "refunded 1 for A"
    assert journal.lines() == ["refund A"]


async def test_without_retries_a_request_that_was_not_sent_fails_and_says_so(journal: Journal) -> None:
    async with http_shop(journal) as shop, shop.server() as server:
        shop.kill()
        with pytest.raises(MCPUnavailable) as caught:
            await server.call_tool("refund", {"order": "A"})
        assert caught.value.tool_name == "refund"


async def test_a_server_killed_in_a_call_gives_an_uncertain_end_and_no_second_call(journal: Journal) -> None:
    eager = {"max_retry_attempts": 2, "retry_backoff_seconds_base": 0.01}
    async with http_shop(journal) as shop, shop.server(**eager) as server:
        await server.list_tools()
        with pytest.raises(MCPCallUncertain, match="was asked to call 'die'"):
            await server.call_tool("die", {"order": "A"})
    assert journal.lines() == ["die A"]


async def test_one_request_that_fails_leaves_the_others_alone(journal: Journal) -> None:
    async with http_shop(journal) as shop, shop.server() as server:
        await server.list_tools()
        slow = asyncio.create_task(server.call_tool("hang", {}))
        await until(lambda: journal.count("hang"))
        server._timeout = 0.5
        with pytest.raises(MCPCallUncertain):
            await server.call_tool("hang", {})
        assert not slow.done()
        server._timeout = 20
        await server.call_tool("stock", {"item": "tea"})
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow


async def test_letting_go_of_a_server_that_hangs_ends_in_time(journal: Journal) -> None:
    async with http_shop(journal) as shop:
        server = shop.server()
        await server.connect()
        shop.process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        await server.cleanup()
        assert time.monotonic() - begun < 8


async def test_a_list_that_changed_is_fetched_again(journal: Journal) -> None:
    heard = asyncio.Event()

    async def listen(message: object) -> None:
        heard.set()

    async with http_shop(journal) as shop, shop.server(cache_tools_list=True, message_handler=listen) as server:
        assert "fresh" not in [tool.name for tool in await server.list_tools()]
        await asyncio.sleep(0.2)  # the stream for notifications is opened after the handshake
        await server.call_tool("grow", {})
        async with asyncio.timeout(5):
            await heard.wait()
        assert "fresh" in [tool.name for tool in await server.list_tools()]


async def test_the_older_transport_works_too(journal: Journal) -> None:
    async with http_shop(journal, kind="sse") as shop:
        params = {"url": shop.url.replace("/mcp", "/sse")}
        async with MCPServerSse(params, client_session_timeout_seconds=20) as server:
            assert "stock" in [tool.name for tool in await server.list_tools()]
            assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
            shop.kill()
            with pytest.raises(MCPServerError):
                await server.call_tool("refund", {"order": "A"})
    assert journal.lines() == ["stock tea"]


def test_the_name_of_a_server_gives_no_secrets_away() -> None:
    server = MCPServerStreamableHttp({"url": "https://ann:pw@tools.example/mcp?token=s3cret"})
    assert server.name == "streamable_http: https://tools.example/mcp"
