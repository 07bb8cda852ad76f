"""Messages and outputs that are too large: they are refused while they are read, and cut before the model gets them."""

import base64
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from factories.mcp import PlainHttpServer, ServerLog, stdio_server, wait_until
from standfast import Agent, Runner
from standfast.mcp import MCPCallUncertain, MCPInvalidResponse, MCPServerError
from standfast.mcp._client.message_limits import MessageMeter
from standfast.testing import ScriptedModel, assistant_message, function_call

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
