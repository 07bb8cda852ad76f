"""A server over a real socket: sessions that are lost, servers that are gone, requests that were or were not sent."""

import asyncio
import base64
import signal
import time
from pathlib import Path

import pytest
from shops import HttpShop, Journal, Mall, http_shop, until, wait_for

from standfast.mcp import (
    MCPCallRefused,
    MCPCallUncertain,
    MCPInvalidResponse,
    MCPServerError,
    MCPServerStreamableHttp,
    MCPUnavailable,
)


async def test_tools_are_listed_and_called_in_a_session(mall: Mall) -> None:
    async with mall.server() as server:
        assert server.session_id
        assert "stock" in [tool.name for tool in await server.list_tools()]
        calls = [server.call_tool("stock", {"item": str(number)}) for number in range(5)]
        texts = [result.content[0].text for result in await asyncio.gather(*calls)]
        assert texts == [f"shop has 3 of {number}" for number in range(5)]


@pytest.mark.parametrize("kind", ["json", "stateless"])
async def test_servers_that_answer_in_other_ways_work_too(mall: Mall, kind: str) -> None:
    async with mall.server(kind) as server:
        await server.list_tools()
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"


async def test_nobody_at_the_address_is_unavailable(journal: Journal) -> None:
    shop = HttpShop(journal)
    with pytest.raises(MCPUnavailable, match="'web' cannot be reached: ConnectError"):
        await shop.server().connect()


async def test_a_refusal_names_the_status(mall: Mall) -> None:
    server = MCPServerStreamableHttp({"url": mall.url("events") + "/elsewhere"}, name="web")
    with pytest.raises(MCPUnavailable, match="HTTP 404 Not Found"):
        await server.connect()


async def test_a_server_that_was_restarted_gets_a_new_session(journal: Journal) -> None:
    async with http_shop(journal) as shop, shop.server() as server:
        first = server.session_id
        await server.call_tool("refund", {"order": "A"})
        shop.kill()
        shop.start()
        await server.call_tool("refund", {"order": "B"})
        assert server.session_id != first
    assert journal.calls() == ["refund A", "refund B"]


async def test_a_request_that_was_not_sent_is_sent_again(journal: Journal) -> None:
    async with (
        http_shop(journal) as shop,
        shop.server(max_retry_attempts=-1, retry_backoff_seconds_base=0.1, retry_backoff_seconds_max=0.2) as server,
    ):
        shop.kill()
        call = asyncio.create_task(server.call_tool("refund", {"order": "A"}))
        await asyncio.sleep(0.3)
        assert not call.done()
        shop.start()
        assert (await call).content[0].text == "refunded 1 for A"
    assert journal.calls() == ["refund A"]


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
    assert journal.calls() == ["die A"]


async def test_one_request_that_fails_leaves_the_others_alone(mall: Mall) -> None:
    async with mall.server() as server:
        await server.list_tools()
        slow = asyncio.create_task(server.call_tool("hang", {}))
        await until(lambda: mall.journal.count("hang"))
        server.client_session_timeout_seconds = 0.5
        with pytest.raises(MCPCallUncertain):
            await server.call_tool("hang", {})
        assert not slow.done()
        server.client_session_timeout_seconds = 20
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


async def test_a_list_that_changed_is_fetched_again(mall: Mall) -> None:
    heard = asyncio.Event()

    async def listen(message: object) -> None:
        heard.set()

    async with mall.server(cache_tools_list=True, message_handler=listen) as server:
        assert "fresh" not in [tool.name for tool in await server.list_tools()]
        async with asyncio.timeout(5):
            while not heard.is_set():  # the stream for notifications is opened some time after the handshake
                await server.call_tool("grow", {})
        assert "fresh" in [tool.name for tool in await server.list_tools()]


async def test_the_older_transport_works_too(tmp_path: Path) -> None:
    mall = Mall(Journal(tmp_path / "journal"))
    try:
        wait_for(mall.ports["sse"])
        async with mall.older() as server:
            assert "stock" in [tool.name for tool in await server.list_tools()]
            assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
            mall.kill()
            with pytest.raises(MCPServerError):
                await server.call_tool("refund", {"order": "A"})
    finally:
        mall.kill()
    assert mall.journal.calls() == ["stock tea"]


def test_the_name_of_a_server_gives_no_secrets_away() -> None:
    server = MCPServerStreamableHttp({"url": "https://ann:pw@tools.example/mcp?token=s3cret"})
    assert server.name == "streamable_http: https://tools.example/mcp"


async def test_a_server_that_was_let_go_has_no_session(mall: Mall) -> None:
    server = mall.server()
    async with server:
        assert server.session_id
    assert server.session_id is None


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b"no JSON"),
        ("application/json", b"[]"),
        ("application/json", b'{"jsonrpc": "2.0", "id": 4711, "result": {}}'),
        ("application/json", b"\xff\xfe"),
        ("text/html", b"<h1>Sorry</h1>"),
        ("text/event-stream", b"data: no JSON\n\n"),
        ("text/event-stream", b"nonsense\n\n\n"),
        ("text/event-stream", b""),
    ],
)
async def test_an_answer_that_makes_no_sense_fails_its_own_call_only(journal: Journal, kind: str, body: bytes) -> None:
    async with http_shop(journal) as shop, shop.server(client_session_timeout_seconds=2) as server:
        await server.list_tools()
        slow = asyncio.create_task(server.call_tool("hang", {}))
        await until(lambda: journal.count("hang"))
        said = {"code": base64.b64encode(body).decode(), "kind": kind, "status": 200}
        with pytest.raises(MCPServerError) as caught:
            await server.call_tool("say", said)
        assert isinstance(caught.value, MCPInvalidResponse | MCPCallUncertain)  # it did get there
        assert caught.value.tool_name == "say"
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
        slow.cancel()
        await asyncio.wait({slow})


STATUSES = {202: MCPInvalidResponse, 302: MCPCallRefused, 400: MCPUnavailable, 500: MCPCallUncertain}


@pytest.mark.parametrize(("status", "error"), STATUSES.items())
async def test_a_status_instead_of_an_answer_says_whether_the_call_was_taken(
    journal: Journal, status: int, error: type[Exception]
) -> None:
    async with http_shop(journal) as shop, shop.server(client_session_timeout_seconds=2) as server:
        with pytest.raises(error):
            await server.call_tool("say", {"code": "", "kind": "text/plain", "status": status})
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
