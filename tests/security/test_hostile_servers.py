"""Servers that attack their clients: bodies and streams without end, bombs, wrong types, and what a terminal obeys."""

import asyncio
import gzip
import json
import resource
import traceback
from contextlib import asynccontextmanager

import pytest

from standfast import StandfastError
from standfast.client import Client, ServerError, ServerUnreachable
from standfast.client.event_stream import follow_stream
from standfast.client.runs import RemoteRun

LIMIT = 200_000
PROBLEM = {"title": "t", "status": 409, "code": "history-moved", "detail": "moved"}

REQUESTS = {
    "info": lambda client: client.info(),
    "start": lambda client: client.start("a", "hi"),
    "runs": lambda client: client.runs(),
    "approval": lambda client: client.approval("a"),
    "decide": lambda client: client.decide("a", "approve"),
    "items": lambda client: client.session("s").get_items(),
    "workspace": lambda client: client.workspace("s"),
    "audit": lambda client: client.admin.audit(),
}


async def read_events(client):
    return [event async for event in RemoteRun(client, "run_1").events()]


async def read_export(client):
    return [line async for line in await client.store.export("s")]


async def follow(client):
    return [change async for change in client.follow_approvals()]


async def watch(client):
    return [message async for message in client.admin.watch_call("c")]


STREAMS = {"events": read_events, "export": read_export, "approvals": follow, "call": watch}
EVERYTHING = REQUESTS | STREAMS


@asynccontextmanager
async def serving(respond):
    """Serve ``respond(writer, head)`` on this machine, for a client with a small limit; yields the client."""
    heads, tasks = [], set()

    async def handle(reader, writer):
        tasks.add(asyncio.current_task())
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await respond(writer, heads[-1])
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with Client(url, token="sf_secret_token", timeout=2.0, max_response_bytes=LIMIT) as client:
        client.heads, client.url = heads, url
        try:
            yield client
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks) if tasks else None


def answer(body, *, status=200, **headers):
    """Return a handler that answers with a body and headers, and closes the connection."""
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}", "connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]

    async def respond(writer, _head):
        writer.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)

    return respond


def endless(part, *, head=b"HTTP/1.1 200 X\r\nconnection: close\r\n\r\n"):
    async def respond(writer, _head):
        writer.write(head)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return respond


def measure_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("part", [b" " * 65536, b"[" * 65536, b'{"x":' * 8192], ids=["spaces", "lists", "objects"])
async def test_an_answer_without_end_is_refused(name, part):
    before = measure_memory()
    async with serving(endless(part)) as client:
        with pytest.raises(ServerError, match="more than 200,000 bytes"):
            await EVERYTHING[name](client)
    assert measure_memory() - before < 50_000_000


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("status", [200, 500])
async def test_a_compressed_answer_is_refused_before_it_is_unpacked(name, status):
    bomb = gzip.compress(bytes(50_000_000))
    before = measure_memory()
    async with serving(answer(bomb, status=status, content_encoding="gzip")) as client:
        with pytest.raises(ServerError, match="compressed with 'gzip'"):
            await EVERYTHING[name](client)
        assert b"accept-encoding: identity" in client.heads[0].lower()
    assert measure_memory() - before < 40_000_000


NONSENSE = {
    "text": b"hello",
    "empty": b"",
    "number": b"1e999",
    "list": b"[1, 2]",
    "other fields": b'{"status": 7, "items": "x", "run_id": [], "id": {}}',
    "null": b"null",
    "not UTF-8": b'{"id": "\xff\xfe"}',
    "deep": b"[" * 90_000 + b"]" * 90_000,
    "deep objects": b'{"a":' * 30_000 + b"1" + b"}" * 30_000,
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("kind", NONSENSE)
async def test_an_answer_of_another_kind_is_an_error_of_the_server(name, kind):
    async with serving(answer(NONSENSE[kind], content_type="application/json")) as client:
        with pytest.raises(ServerError, match="not what it should be"):
            await REQUESTS[name](client)


@pytest.mark.parametrize(
    ("name", "kind"),
    # A message of a call may have any fields.
    [
        (name, kind)
        for name in ("events", "approvals", "call")
        for kind in NONSENSE
        if (name, kind[:5]) != ("call", "other")
    ],
)
async def test_an_event_of_another_kind_is_an_error_of_the_server(name, kind):
    body = b"id: 1\nevent: x\ndata: " + NONSENSE[kind] + b"\n\n"
    async with serving(answer(body, content_type="text/event-stream")) as client:
        with pytest.raises(ServerError, match=r"not what it should be|not UTF-8"):
            await STREAMS[name](client)


@pytest.mark.parametrize("kind", NONSENSE)
@pytest.mark.parametrize("status", [301, 400, 404, 418, 500])
async def test_an_error_that_is_none_is_an_error_of_the_server(kind, status):
    async with serving(answer(NONSENSE[kind], status=status)) as client:
        with pytest.raises(ServerError) as caught:
            await client.runs()
    assert caught.value.status == status
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", EVERYTHING)
async def test_the_credential_does_not_follow_a_redirect(name):
    other = []

    async def collect(writer, head):
        other.append(head)
        await answer(b"{}")(writer, head)

    async with serving(collect) as elsewhere, serving(answer(b"", status=307, location=elsewhere.url)) as client:
        with pytest.raises(ServerError):
            await EVERYTHING[name](client)
    assert other == []


async def test_the_facts_of_an_error_change_nothing_of_an_exception():
    hostile = {
        "__notes__": ["\x1b[2Jnote"],
        "__cause__": "x",
        "_hidden": 1,
        "args": ["changed"],
        "with_traceback": "x",
        "add_note": 1,
        "code": "ok",
        "session_id": "s",
    }
    body = json.dumps(PROBLEM | {"facts": hostile}).encode()
    async with serving(answer(body, status=409)) as client:
        with pytest.raises(StandfastError) as caught:
            await client.decide("a", "approve")
    error = caught.value
    assert (error.code, error.args, vars(error)) == ("history-moved", ("moved",), {"session_id": "s"})
    assert "\x1b" not in "".join(traceback.format_exception(error.with_traceback(None)))


@pytest.mark.parametrize("value", ["²", "-1", "1e9", "0x10", "9" * 400, "٣"])
async def test_a_time_to_wait_that_is_none_is_ignored(value):
    replies = iter([429, 200])

    async def respond(writer, head):
        status = next(replies)
        lines = f"HTTP/1.1 {status} X\r\ncontent-length: 2\r\nconnection: close\r\nretry-after: {value}\r\n\r\n{{}}"
        writer.write(lines.encode())

    async with serving(respond) as client:
        with pytest.raises(ServerError):
            await asyncio.wait_for(client.runs(), 60)


async def test_an_answer_byte_by_byte_is_given_up():
    async def respond(writer, _head):
        writer.write(b"HTTP/1.1 200 X\r\ncontent-length: 100000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.05)

    async with serving(respond) as client:
        with pytest.raises(ServerUnreachable, match="did not come"):
            await client.decide("a", "approve")


async def test_a_stream_that_is_always_refused_ends():
    async with serving(answer(b"", status=503)) as client:
        with pytest.raises(ServerError) as caught:
            async for _ in follow_stream(client.connection, "/runs/r/events", params={}, after=None, max_failures=3):
                pass
        assert caught.value.status == 503
        assert len(client.heads) == 4
