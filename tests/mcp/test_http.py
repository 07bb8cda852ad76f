"""Servers over HTTP: lost sessions, dead servers, and requests that did or did not reach the server."""

import asyncio
import base64
import signal

import pytest

from factories.mcp import (
    TIMEOUT,
    PlainHttpServer,
    Relay,
    SdkServers,
    ServerLog,
    sse_server,
    start_http_server,
    wait_until,
)
from standfast.mcp import (
    MCPCallRefused,
    MCPCallUncertain,
    MCPInvalidResponse,
    MCPServerError,
    MCPServerStreamableHttp,
    MCPUnavailable,
)


async def test_tools_are_listed_and_called_in_a_session(sdk_servers: SdkServers) -> None:
    async with sdk_servers.server() as server:
        assert server.session_id
        assert "stock" in [tool.name for tool in await server.list_tools()]
        calls = [server.call_tool("stock", {"item": str(number)}) for number in range(5)]
        texts = [result.content[0].text for result in await asyncio.gather(*calls)]
        assert texts == [f"shop has 3 of {number}" for number in range(5)]


async def test_prompts_and_resources_are_read(sdk_servers: SdkServers) -> None:
    async with sdk_servers.server() as server:
        assert [prompt.name for prompt in (await server.list_prompts()).prompts] == ["greet"]
        prompt = await server.get_prompt("greet", {"name": "Ann"})
        assert prompt.messages[0].content.text == "Greet Ann warmly."
        assert [str(found.uri) for found in (await server.list_resources()).resources] == ["shop://terms"]
        templates = (await server.list_resource_templates()).resource_templates
        assert [found.uri_template for found in templates] == ["shop://orders/{order}"]
        assert (await server.read_resource("shop://orders/7")).contents[0].text == "order 7"


@pytest.mark.parametrize("kind", ["json", "stateless"])
async def test_json_responses_and_stateless_servers_are_supported(sdk_servers: SdkServers, kind: str) -> None:
    async with sdk_servers.server(kind) as server:
        await server.list_tools()
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"


async def test_a_port_without_a_server_is_unavailable(log: ServerLog) -> None:
    plain = PlainHttpServer(log)
    with pytest.raises(MCPUnavailable, match="'web' cannot be reached: ConnectError"):
        await plain.server().connect()


async def test_a_failed_connect_names_the_http_status(sdk_servers: SdkServers) -> None:
    server = MCPServerStreamableHttp({"url": sdk_servers.url("events") + "/elsewhere"}, name="web")
    with pytest.raises(MCPUnavailable, match="HTTP 404 Not Found"):
        await server.connect()


async def test_after_a_restart_of_the_server_a_new_session_is_opened(log: ServerLog) -> None:
    async with start_http_server(log) as shop, shop.server() as server:
        first = server.session_id
        await server.call_tool("refund", {"order": "A"})
        shop.kill()
        shop.start()
        await server.call_tool("refund", {"order": "B"})
        assert server.session_id != first
    assert log.calls() == ["refund A", "refund B"]


async def test_a_request_that_was_not_sent_is_retried(log: ServerLog) -> None:
    async with (
        start_http_server(log) as shop,
        shop.server(max_retry_attempts=-1, retry_backoff_seconds_base=0.1, retry_backoff_seconds_max=0.2) as server,
    ):
        shop.kill()
        call = asyncio.create_task(server.call_tool("refund", {"order": "A"}))
        await asyncio.sleep(0.3)
        assert not call.done()
        shop.start()
        assert (await call).content[0].text == "refunded 1 for A"
    assert log.calls() == ["refund A"]


async def test_without_retries_a_request_that_was_not_sent_is_unavailable(log: ServerLog) -> None:
    async with start_http_server(log) as shop, shop.server() as server:
        shop.kill()
        with pytest.raises(MCPUnavailable) as caught:
            await server.call_tool("refund", {"order": "A"})
        assert caught.value.tool_name == "refund"


async def test_a_server_killed_in_a_call_makes_it_uncertain_and_it_is_not_repeated(log: ServerLog) -> None:
    retries = {"max_retry_attempts": 2, "retry_backoff_seconds_base": 0.01}
    async with start_http_server(log) as shop, shop.server(**retries) as server:
        await server.list_tools()
        with pytest.raises(MCPCallUncertain, match="was asked to call 'die'"):
            await server.call_tool("die", {"order": "A"})
    assert log.calls() == ["die A"]


async def test_a_request_that_fails_does_not_affect_others(sdk_servers: SdkServers) -> None:
    async with sdk_servers.server() as server:
        await server.list_tools()
        slow = asyncio.create_task(server.call_tool("hang", {}))
        await wait_until(lambda: sdk_servers.log.count("hang"))
        server.client_session_timeout_seconds = 0.5
        with pytest.raises(MCPCallUncertain):
            await server.call_tool("hang", {})
        assert not slow.done()
        server.client_session_timeout_seconds = TIMEOUT
        await server.call_tool("stock", {"item": "tea"})
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow


@pytest.mark.usefixtures("short_timeouts")
async def test_cleanup_does_not_wait_for_a_server_that_hangs(log: ServerLog) -> None:
    async with start_http_server(log) as shop:
        server = shop.server(params={"timeout": 3600})
        await server.connect()
        shop.process.send_signal(signal.SIGSTOP)
        await server.cleanup()


async def test_a_changed_list_of_tools_is_fetched_again(sdk_servers: SdkServers) -> None:
    notified = asyncio.Event()

    async def handle(message: object) -> None:
        notified.set()

    async with sdk_servers.server(cache_tools_list=True, message_handler=handle) as server:
        assert "fresh" not in [tool.name for tool in await server.list_tools()]
        async with asyncio.timeout(TIMEOUT):
            while not notified.is_set():  # the stream for notifications is opened some time after the handshake
                await server.call_tool("add_tool", {})
        assert "fresh" in [tool.name for tool in await server.list_tools()]


async def test_the_older_transport_works_until_the_server_ends(sdk_servers: SdkServers) -> None:
    relay = Relay(sdk_servers.ports["sse"])
    async with sse_server(await relay.start()) as server:
        assert "stock" in [tool.name for tool in await server.list_tools()]
        assert (await server.call_tool("stock", {"item": "sse"})).content[0].text == "shop has 3 of sse"
        await relay.close()
        with pytest.raises(MCPServerError):
            await server.call_tool("refund", {"order": "sse"})
    assert sdk_servers.log.count("stock sse") == 1
    assert sdk_servers.log.count("refund sse") == 0


def test_the_default_name_of_a_server_contains_no_credentials() -> None:
    server = MCPServerStreamableHttp({"url": "https://ann:pw@tools.example/mcp?token=s3cret"})
    assert server.name == "streamable_http: https://tools.example/mcp"


async def test_after_cleanup_there_is_no_session_id(sdk_servers: SdkServers) -> None:
    server = sdk_servers.server()
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
async def test_an_invalid_response_affects_only_its_own_call(
    plain_http: PlainHttpServer, kind: str, body: bytes
) -> None:
    async with plain_http.server() as server:
        await server.list_tools()
        hangs = plain_http.log.count("hang")
        slow = asyncio.create_task(server.call_tool("hang", {}))
        await wait_until(lambda: plain_http.log.count("hang") > hangs)
        server.client_session_timeout_seconds = 1  # a response with another id is never assigned to the call
        with pytest.raises(MCPServerError) as caught:
            await server.call_tool("write_raw", {"code": base64.b64encode(body).decode(), "kind": kind, "status": 200})
        server.client_session_timeout_seconds = TIMEOUT
        assert isinstance(caught.value, MCPInvalidResponse | MCPCallUncertain)  # the request did arrive
        assert caught.value.tool_name == "write_raw"
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
        slow.cancel()
        await asyncio.wait({slow})


STATUSES = {
    202: MCPInvalidResponse,
    302: MCPCallRefused,
    400: MCPUnavailable,
    408: MCPCallUncertain,
    500: MCPCallUncertain,
}


@pytest.mark.parametrize(("status", "error"), STATUSES.items())
async def test_a_status_without_a_message_tells_whether_the_call_was_accepted(
    plain_http: PlainHttpServer, status: int, error: type[Exception]
) -> None:
    async with plain_http.server() as server:
        with pytest.raises(error):
            await server.call_tool("write_raw", {"code": "", "kind": "text/plain", "status": status})
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
