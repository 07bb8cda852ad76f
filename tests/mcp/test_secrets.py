"""What a program gives to a server is in no error, log line or representation."""

import logging
import sys
import traceback
from typing import Any

import pytest
from shops import PLAIN, Journal, http_shop, stdio

from standfast.mcp import MCPServerSse, MCPServerStdio, MCPServerStreamableHttp, MCPUnavailable

SECRET = "s3cr3t"


def everything(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("kind", [MCPServerSse, MCPServerStreamableHttp])
async def test_the_address_and_the_headers_are_not_told(
    journal: Journal, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_shop(journal) as shop:
        url = f"{shop.url.replace('//', f'//ann:{SECRET}@')}/secret?token={SECRET}"
        server = kind({"url": url, "headers": {"authorization": f"Bearer {SECRET}"}}, client_session_timeout_seconds=5)
        with caplog.at_level(logging.DEBUG, "standfast"), pytest.raises(MCPUnavailable, match="HTTP 401") as caught:
            await server.connect()
    assert SECRET not in everything(caught.value) + repr(server) + server.name
    assert not [record for record in caplog.records if record.name.startswith("standfast") and SECRET in str(record)]


async def test_an_address_that_nobody_answers_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    for kind in (MCPServerSse, MCPServerStreamableHttp):
        server = kind({"url": f"http://ann:{SECRET}@127.0.0.1:9/mcp?token={SECRET}"}, client_session_timeout_seconds=5)
        with pytest.raises(MCPUnavailable) as caught:
            await server.connect()
        assert SECRET not in everything(caught.value)


@pytest.mark.parametrize("mode", ["crash", "silent"])
async def test_the_environment_and_the_arguments_of_a_process_are_not_told(
    journal: Journal, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"TOKEN": SECRET, "JOURNAL": str(journal.path)}
    params = {"command": sys.executable, "args": ["-S", PLAIN, mode, f"--token={SECRET}"], "env": env}
    server = MCPServerStdio(params, client_session_timeout_seconds=1)
    with caplog.at_level(logging.DEBUG, "standfast"), pytest.raises(MCPUnavailable) as caught:
        await server.connect()
    assert SECRET not in everything(caught.value) + repr(server) + repr(server._process) + server.name + caplog.text


async def test_what_was_asked_for_is_not_told_when_the_answer_is_broken(journal: Journal) -> None:
    async with stdio(journal) as server:
        with pytest.raises(Exception, match="breaks the protocol") as caught:
            await server.call_tool("answer", {"result": {"content": {"password": SECRET}}})
    assert SECRET not in str(caught.value)
