"""Messages and outputs that are too large: they are refused while they are read, and cut before the model gets them."""

import base64
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest, JSONRPCResponse

from factories.mcp import PlainHttpServer, ServerLog, stdio_server, wait_until
from standfast import Agent, Runner
from standfast.mcp import MCPCallUncertain, MCPInvalidResponse, MCPServerError
from standfast.mcp._client.message_limits import MessageMeter
from standfast.mcp._client.requests import ClientSessionServer
from standfast.testing import ScriptedModel, assistant_message, function_call
from standfast.testing.virtual_time import run_in_virtual_time

LIMIT = 200_000
PADDING = " " * (20 * LIMIT)


def raw(body: bytes, kind: str = "application/json", **fields: Any) -> dict[str, Any]:
    """Return the arguments of the tool ``write_raw`` of the HTTP server."""
    return {"status": 200, "code": base64.b64encode(body).decode(), "kind": kind, **fields}


def make_response(request_id: int, text: str) -> bytes:
    result = {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()


NEXT_ID = 2  # of the first request after the handshake


@pytest.mark.parametrize(
    ("compress", "encoding"), [(gzip.compress, "gzip"), (zlib.compress, "deflate"), (lambda body: body, "identity")]
)
async def test_a_body_is_limited_after_decompression(
    plain_http: PlainHttpServer, compress: Callable[[bytes], bytes], encoding: str
) -> None:
    async with plain_http.server(max_message_bytes=LIMIT) as server:
        small = compress(make_response(NEXT_ID, "small"))
        result = await server.call_tool("write_raw", raw(small, encoding=encoding))
        assert result.content[0].text == "small"
        bomb = compress(PADDING.encode() + make_response(NEXT_ID + 1, "large"))
        with pytest.raises(MCPInvalidResponse, match=f"more than {LIMIT} bytes"):
            await server.call_tool("write_raw", raw(bomb, encoding=encoding))
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"


async def test_an_unknown_compression_is_an_invalid_response(plain_http: PlainHttpServer) -> None:
    async with plain_http.server() as server:
        with pytest.raises(MCPInvalidResponse, match="compressed with 'br'"):
            await server.call_tool("write_raw", raw(b"{}", encoding="br"))
        with pytest.raises(MCPInvalidResponse, match="cannot be decompressed"):
            await server.call_tool("write_raw", raw(b"no gzip", encoding="gzip"))


@pytest.mark.parametrize(
    ("kind", "piece", "error"),
    [
        ("application/json", b" " * 1000, MCPInvalidResponse),
        ("text/event-stream", b"data: " + b"x" * 1000, MCPCallUncertain),
        ("text/event-stream", b"data: x\n" * 100, MCPCallUncertain),
    ],
)
async def test_an_endless_body_is_abandoned(
    plain_http: PlainHttpServer, kind: str, piece: bytes, error: type[MCPServerError]
) -> None:
    before = plain_http.log.count("hung up")
    async with plain_http.server(max_message_bytes=LIMIT) as server:
        with pytest.raises(error, match=f"more than {LIMIT} bytes"):
            await server.call_tool("write_raw", raw(piece, kind, endless=True))
        await wait_until(lambda: plain_http.log.count("hung up") > before)


@pytest.mark.parametrize(("compress", "encoding"), [(gzip.compress, "gzip"), (zlib.compress, "deflate")])
async def test_what_follows_the_end_of_a_compressed_body_is_not_kept(
    plain_http: PlainHttpServer, compress: Callable[[bytes], bytes], encoding: str
) -> None:
    before = plain_http.log.count("hung up")
    body = compress(make_response(NEXT_ID, "small"))
    async with plain_http.server(max_message_bytes=LIMIT) as server:
        with pytest.raises(MCPInvalidResponse, match="data after its end"):
            await server.call_tool("write_raw", raw(body, encoding=encoding, endless=True))
        await wait_until(lambda: plain_http.log.count("hung up") > before)


async def test_a_stream_of_many_events_is_not_limited_as_a_whole(plain_http: PlainHttpServer) -> None:
    notification = b'data: {"jsonrpc": "2.0", "method": "notifications/x"}\r\n\r\n'
    events = notification * (2 * LIMIT // len(notification)) + b"data: " + make_response(NEXT_ID, "at last") + b"\n\n"
    async with plain_http.server(max_message_bytes=LIMIT) as server:
        result = await server.call_tool("write_raw", raw(events, "text/event-stream"))
        assert result.content[0].text == "at last"


MANY = {
    "objects": lambda: "[" + "{}," * 300_000 + "{}]",
    "numbers": lambda: "[" + "1," * 300_000 + "1]",
    "names": lambda: "{" + ",".join(f'"{n:x}":1' for n in range(300_000)) + "}",
    "texts": lambda: "[" + '"\\\\\\"",' * 300_000 + '""]',
}


@pytest.mark.parametrize("write", MANY.values(), ids=MANY)
async def test_a_message_of_very_many_values_is_refused_before_it_is_parsed(
    plain_http: PlainHttpServer, log: ServerLog, write: Callable[[], str]
) -> None:
    content = write()
    json.loads(content)
    body = (
        f'{{"jsonrpc": "2.0", "id": {NEXT_ID}, "result": {{"content": [], "structuredContent": {{"x": {content}}}}}}}'
    )
    async with plain_http.server() as server:
        with pytest.raises(MCPInvalidResponse, match="more than 200000 values"):
            await server.call_tool("write_raw", raw(body.encode()))
        # A quotation mark before the message does not make texts of what follows.
        events = raw(b': "\nevent: message\ndata: ' + body.encode() + b"\n\n", "text/event-stream")
        with pytest.raises(MCPCallUncertain, match=r"more than 200000 values|1048576 byte limit"):
            await server.call_tool("write_raw", events)
    async with stdio_server(log) as server:
        code = base64.b64encode(body.encode() + b"\n").decode()
        with pytest.raises(MCPCallUncertain, match="more than 200000 values"):
            await server.call_tool("write_raw", {"code": code})


@pytest.mark.parametrize("charset", ["unicode_escape", "utf-7", "utf-16-le", "punycode"])
async def test_an_event_stream_is_utf_8_whatever_its_server_says(plain_http: PlainHttpServer, charset: str) -> None:
    """The values would otherwise be counted in other bytes than those that are parsed."""
    kind = f"text/event-stream; charset={charset}"
    content = "[" + "1," * 240_000 + "1]"
    body = (
        f'{{"jsonrpc": "2.0", "id": {NEXT_ID}, "result": {{"content": [], "structuredContent": {{"x": {content}}}}}}}'
    )
    hidden = f"data: {body}\n\n".replace(",", r"\x2c").replace("[", r"\x5b").replace("{", r"\x7b").encode()
    async with plain_http.server() as server:
        with pytest.raises(MCPServerError):
            await server.call_tool("write_raw", raw(hidden, kind))
        event = json.dumps(json.loads(make_response(NEXT_ID + 1, "süß \u2028 \U0001f34b")), ensure_ascii=False)
        result = await server.call_tool("write_raw", raw(f"data: {event}\n\n".encode(), kind))
        assert result.content[0].text == "süß \u2028 \U0001f34b"


PARTS = {
    "output": {"content": [1] * 15_000},
    "empty parts": {"content": [{}] * 15_000},
    "messages": {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}] * 15_000},
    "resource": {"contents": [1] * 15_000},
}


@pytest.mark.parametrize("result", PARTS.values(), ids=PARTS)
async def test_a_message_of_very_many_parts_is_refused_before_each_is_checked(
    plain_http: PlainHttpServer, log: ServerLog, result: Any
) -> None:
    """Each part that fits none of the types would be described once per type."""
    async with plain_http.server() as server:
        body = json.dumps({"jsonrpc": "2.0", "id": NEXT_ID, "result": result}).encode()
        with pytest.raises(MCPInvalidResponse, match="more than 10000 parts"):
            await server.call_tool("write_raw", raw(body))
        assert (await server.call_tool("stock", {"item": "tea"})).content[0].text == "shop has 3 of tea"
    async with stdio_server(log) as server:
        with pytest.raises(MCPInvalidResponse, match="more than 10000 parts"):
            await server.call_tool("return_raw", {"result": result})


async def test_all_pages_of_a_list_together_are_limited_like_a_message(log: ServerLog) -> None:
    async with stdio_server(log, "long_list") as server:
        with pytest.raises(MCPInvalidResponse, match="a tool list of more than 8388608 bytes"):
            await server.list_tools()
    assert log.count("list") == 8


async def test_a_server_with_very_many_tools_is_refused(log: ServerLog, tmp_path: Path) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps([{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(12_000)]))
    async with stdio_server(log, env={"TOOLS": str(tools)}) as server:
        with pytest.raises(MCPInvalidResponse, match="more than 12000 tools"):
            await server.list_tools()


class UnreadServer(ClientSessionServer):
    """A server that answers the handshake, and then asks without end and reads nothing."""

    written = 0

    @property
    def name(self) -> str:
        return "unread"

    @asynccontextmanager
    async def create_streams(self) -> AsyncIterator[Any]:
        to_client, inbox = anyio.create_memory_object_stream[SessionMessage](0)
        outbox, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        async with to_client, inbox, outbox, from_client, anyio.create_task_group() as tasks:
            tasks.start_soon(self.ask, to_client, from_client)
            yield inbox, outbox
            tasks.cancel_scope.cancel()

    async def ask(self, to_client: Any, from_client: Any) -> None:
        handshake = (await from_client.receive()).message
        version = handshake.params["protocolVersion"]
        info = {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "unread", "version": "1"}}
        await to_client.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=handshake.id, result=info)))
        await from_client.receive()  # that the client is ready
        await from_client.receive()  # the call, which is not answered
        for number in range(1000):
            self.written = number
            await to_client.send(SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=number, method="ping")))


def test_a_server_that_asks_without_reading_the_answers_is_not_read_either() -> None:
    async def call() -> int:
        async with UnreadServer(client_session_timeout_seconds=60) as server:
            with pytest.raises(MCPCallUncertain, match="did not answer within 60 seconds"):
                await server.call_tool("x", {})
            return server.written

    assert run_in_virtual_time(call()) < 20


async def test_a_server_may_ask_often(log: ServerLog) -> None:
    ping = json.dumps({"jsonrpc": "2.0", "id": "a", "method": "ping"}).encode() + b"\n"
    async with stdio_server(log) as server:
        result = await server.call_tool("write_raw", {"code": base64.b64encode(ping * 1000).decode()})
        assert result.content[0].text == "written"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_values_are_counted_outside_of_texts_however_the_message_is_divided(size: int) -> None:
    message = json.dumps({"a,b": ["x,y{[", 'quoted ", \\', {"c\\": '\\"\n,'}], "d": [1, 2, 3]}, indent=1).encode()
    meter = MessageMeter(10_000)
    for start in range(0, len(message), size):
        meter.add(message[start : start + size])
    assert meter._values == 4 + 1 + 2 + 2


async def test_texts_full_of_brackets_and_commas_arrive(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        table = {"content": [{"type": "text", "text": "[1,{2},3]\n" * 100_000}]}
        output = await run_tool(server, "return_raw", {"result": table})
        assert output["text"] == "[1,{2},3]\n" * 100_000


async def test_an_output_of_very_many_parts_is_cut(log: ServerLog) -> None:
    async with stdio_server(log) as server:
        texts = [{"type": "text", "text": "y"}] * 1500
        parts = await run_tool(server, "return_raw", {"result": {"content": texts}})
        assert len(parts) == 1001
        assert parts[-1]["text"] == "[cut after 1000 parts: the output has 1500]"


async def test_a_line_that_is_too_long_ends_the_connection_and_says_so(log: ServerLog) -> None:
    async with stdio_server(log, max_message_bytes=LIMIT) as server:
        with pytest.raises(MCPCallUncertain, match=f"more than {LIMIT} bytes"):
            await server.call_tool("long_text", {"megabytes": 2})
        await server.call_tool("stock", {"item": "tea"})
    assert len(log.pids()) == 2


@pytest.mark.parametrize("limit", [0, -1, 1.5, True])
def test_a_limit_must_be_a_positive_integer(log: ServerLog, limit: Any) -> None:
    for name in ("max_message_bytes", "max_output_chars"):
        with pytest.raises(Exception, match=name):
            stdio_server(log, **{name: limit})


async def run_tool(server: Any, name: str, arguments: dict[str, Any]) -> Any:
    model = ScriptedModel([[function_call(name, json.dumps(arguments), call_id="1")], [assistant_message("done")]])
    result = await Runner.run(Agent("clerk", mcp_servers=[server], model=model), "go")
    return result.new_items[1].output


async def test_an_output_is_cut_for_the_model(log: ServerLog) -> None:
    note = "[cut after 1000000 characters: the output has 2097152]"
    async with stdio_server(log) as server:
        output = await run_tool(server, "long_text", {"megabytes": 2})
        assert output["text"] == "x" * 1_000_000 + "\n" + note
        result = await server.call_tool("long_text", {"megabytes": 2})
        assert len(result.content[0].text) == 2 * 2**20  # the program gets all of it


async def test_the_parts_of_an_output_share_one_limit(log: ServerLog) -> None:
    texts = [{"type": "text", "text": letter * 60} for letter in "abc"]
    async with stdio_server(log, max_output_chars=100) as server:
        parts = await run_tool(server, "return_raw", {"result": {"content": texts}})
        assert [part["text"] for part in parts] == [
            "a" * 60,
            "b" * 40 + "\n[cut after 100 characters: the output has 180]",
        ]
        structured = {"result": {"content": [], "structuredContent": {"x": "y" * 200}}}
        output = await run_tool(server, "return_raw", structured)
        assert output.startswith('{"x": "yyy')
        assert output.endswith("[cut after 100 characters: the output has 209]")
