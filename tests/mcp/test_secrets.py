"""Credentials passed to a server appear in no error, log line or representation."""

import logging
import sys
import traceback
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from factories.mcp import PLAIN_SERVER, TIMEOUT, PlainHttpServer, SdkServers, ServerLog, stdio_server
from standfast.mcp import MCPServerError, MCPServerSse, MCPServerStdio, MCPServerStreamableHttp, MCPUnavailable

SECRET = "s3cr3t"


def format_everything(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("kind", [MCPServerSse, MCPServerStreamableHttp])
async def test_the_url_and_the_headers_are_not_revealed(
    plain_http: PlainHttpServer, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url = f"{plain_http.url.replace('//', f'//ann:{SECRET}@')}/secret?token={SECRET}"
    server = kind(
        {"url": url, "headers": {"authorization": f"Bearer {SECRET}"}}, client_session_timeout_seconds=TIMEOUT
    )
    with caplog.at_level(logging.DEBUG, "standfast"), pytest.raises(MCPUnavailable, match="HTTP 401") as caught:
        await server.connect()
    assert SECRET not in format_everything(caught.value) + repr(server) + server.name
    assert not [record for record in caplog.records if record.name.startswith("standfast") and SECRET in str(record)]


@pytest.mark.parametrize("kind", ["sse", "streamable_http"])
async def test_the_libraries_do_not_log_the_credentials_of_an_address(
    sdk_servers: SdkServers, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    def add_credentials(url: str) -> str:
        return f"{url.replace('//', f'//ann:{SECRET}@')}?key={SECRET}#{SECRET}"

    with caplog.at_level(logging.DEBUG):
        if kind == "sse":
            server: Any = MCPServerSse({"url": add_credentials(sdk_servers.url("sse"))})
        else:
            server = MCPServerStreamableHttp({"url": add_credentials(sdk_servers.url("events"))})
        server.client_session_timeout_seconds = TIMEOUT
        async with server:
            assert await server.list_tools()
        with pytest.raises(MCPUnavailable):
            await type(server)({"url": add_credentials(sdk_servers.url("json") + "/none")}).connect()
    assert [record.name for record in caplog.records if record.name.startswith(("httpx2", "mcp."))]
    formatter = logging.Formatter()
    assert [text for record in caplog.records if SECRET in (text := formatter.format(record))] == []


@pytest.mark.parametrize("host", ["http://@example.com:80", "https://@EXAMPLE.com:443", "https://@müller.example"])
async def test_credentials_are_not_logged_however_the_host_is_written(
    host: str, caplog: pytest.LogCaptureFixture
) -> None:
    def create_client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.MockTransport(lambda request: httpx2.Response(404)), headers=headers)

    url = f"{host.replace('@', f'ann:{SECRET}@')}/mcp?key={SECRET}"
    server = MCPServerStreamableHttp({"url": url, "httpx_client_factory": create_client})
    with caplog.at_level(logging.DEBUG), pytest.raises(MCPUnavailable):
        await server.connect()
    assert [record for record in caplog.records if record.name == "httpx2"]
    assert SECRET not in caplog.text


REPEATED = {
    "the status": lambda url: httpx2.Response(599, extensions={"reason_phrase": str(url.raw_path).encode()}),
    "a header": lambda url: httpx2.Response(302, headers={"location": f"http://other.example/?{url.query.decode()}"}),
    "an error": lambda url: httpx2.Response(
        200, json={"jsonrpc": "2.0", "id": 1, "error": {"code": -1, "message": f"no {url.query.decode()}"}}
    ),
}


@pytest.mark.parametrize("answer", REPEATED.values(), ids=REPEATED)
async def test_what_a_server_repeats_of_its_address_is_not_revealed(
    answer: Callable[[httpx2.URL], httpx2.Response], caplog: pytest.LogCaptureFixture
) -> None:
    def create_client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
        transport = httpx2.MockTransport(lambda request: answer(request.url))
        return httpx2.AsyncClient(transport=transport, headers=headers)

    url = "http://ann:pass%40word@example.com/mcp?key=key-of-the-server"
    server = MCPServerStreamableHttp({"url": url, "httpx_client_factory": create_client})
    with caplog.at_level(logging.DEBUG), pytest.raises(MCPServerError) as caught:
        await server.connect()
    assert "key-of-the-server" not in format_everything(caught.value) + caplog.text


@pytest.mark.parametrize(
    "address", ["HTTP://ann:@host/mcp", "http://ann:a@@host/mcp", "http://ann:@host/mcp?mail=a@b&"]
)
def test_credentials_are_found_however_the_address_is_written(address: str, caplog: pytest.LogCaptureFixture) -> None:
    url = address.replace("@host", f"{SECRET}@host") + f"?key={SECRET}"
    MCPServerStreamableHttp({"url": url})
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("mcp.client.streamable_http").debug("connecting to %s", url)
    assert caplog.messages
    assert SECRET not in caplog.text


async def test_the_url_of_an_unreachable_server_is_not_revealed() -> None:
    for kind in (MCPServerSse, MCPServerStreamableHttp):
        url = f"http://ann:{SECRET}@127.0.0.1:9/mcp?token={SECRET}"
        server = kind({"url": url}, client_session_timeout_seconds=TIMEOUT)
        with pytest.raises(MCPUnavailable) as caught:
            await server.connect()
        assert SECRET not in format_everything(caught.value)


@pytest.mark.parametrize("mode", ["crash", "no_response"])
async def test_the_environment_and_the_arguments_of_a_process_are_not_revealed(
    log: ServerLog, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"TOKEN": SECRET, "SERVER_LOG": str(log.path)}
    params = {"command": sys.executable, "args": ["-S", PLAIN_SERVER, mode, f"--token={SECRET}"], "env": env}
    server = MCPServerStdio(params, client_session_timeout_seconds=1)
    with caplog.at_level(logging.DEBUG, "standfast"), pytest.raises(MCPUnavailable) as caught:
        await server.connect()
    assert SECRET not in format_everything(caught.value) + caplog.text
    assert SECRET not in repr(server) + repr(server._process) + server.name


async def test_the_contents_of_an_invalid_response_are_not_revealed(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        with pytest.raises(Exception, match="sent an invalid response") as caught:
            await server.call_tool("return_raw", {"result": {"content": {"password": SECRET}}})
    assert SECRET not in str(caught.value)
