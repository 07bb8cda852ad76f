"""Clients that send slowly, or without end, do not keep connections of the server process."""

import asyncio
import contextlib
import os
import signal

import pytest

from factories.server import Names, make_agent
from standfast import Runtime
from standfast.server import Limits, create_app
from standfast.server.process import listen, run_server


@contextlib.asynccontextmanager
async def open_process(*, head_seconds=0.1, limits=None):
    """Serve as ``standfast serve`` does, in this process; yield the port."""
    async with Runtime.open("memory://", agents=[make_agent()]) as runtime:
        app = create_app(runtime, auth=Names(), limits=limits)
        with listen("127.0.0.1", 0) as listener:
            serving = asyncio.ensure_future(run_server(app, listener, head_seconds=head_seconds))
            try:
                yield listener.getsockname()[1]
            finally:
                os.kill(os.getpid(), signal.SIGTERM)
                await serving


async def send(port, data):
    """Return everything that is answered until the server closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
    try:
        return await reader.read()
    except ConnectionError:
        return b"reset"
    finally:
        writer.close()


@pytest.mark.parametrize("data", [b"", b"GET", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
async def test_a_request_head_that_never_ends_is_refused(data):
    async with open_process() as port:
        assert await send(port, data) == b""


async def test_the_head_of_a_further_request_has_a_limit_too():
    first = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with open_process() as port:
        answer = await send(port, first + b"GET /healthz HTTP/1.1\r\nHo")
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.count(b"HTTP/1.1") == 1


async def test_a_request_may_take_longer_than_its_head():
    request = b"GET /approvals/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer eve\r\n\r\n"
    async with open_process(limits=Limits(heartbeat=0.05)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        for _ in range(4):  # each after another heartbeat, together longer than a head may take
            await reader.readuntil(b": alive\n\n")
        writer.close()


async def test_a_head_without_end_is_refused():
    line = b"x-filler: " + b"a" * 1000 + b"\r\n"
    async with open_process(head_seconds=60) as port:
        answer = await send(port, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n" + line * 1000)
        assert answer == b"reset" or answer.startswith(b"HTTP/1.1 431 ")


async def test_a_body_sent_byte_by_byte_is_refused():
    head = (
        b"POST /runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ann\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n"
    )
    async with open_process(limits=Limits(body_pause=0.3)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        answer = asyncio.ensure_future(reader.read())
        while not answer.done():
            with contextlib.suppress(ConnectionError):
                writer.write(b" ")
                await writer.drain()
            await asyncio.wait({answer}, timeout=0.05)
        assert answer.result().startswith(b"HTTP/1.1 408 ")
        writer.close()
