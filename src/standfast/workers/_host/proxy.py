"""An HTTP proxy for one worker, on a listener in the worker's own network namespace.

The worker can connect to this proxy and to nothing else, and the proxy connects only to the allowed hosts.
"""

import asyncio
import contextlib
import functools
import ipaddress
import re
import socket
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from standfast.base.log import get_logger
from standfast.workers._host.allowed_hosts import AllowedHosts

_log = get_logger("standfast.workers")

_MAX_CONNECTIONS = 32
_MAX_LOOKUPS = 4
_MAX_HEAD_BYTES = 65536
_HEAD_TIMEOUT = 10.0
_CONNECT_TIMEOUT = 10.0
_IDLE_TIMEOUT = 120.0
_ACCEPT_RETRY_DELAY = 1.0
# A host and perhaps a port, and nothing that a library could read as another host.
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/\\@?#%\s]+)(:[0-9]+)?")
_DROPPED_HEADERS = (b"host", b"connection", b"keep-alive", b"te", b"upgrade")


class RequestRefused(Exception):
    """The request is answered with this status line and nothing else."""


class ProxyRequest(NamedTuple):
    """The head of a request: its target, and what is sent to it first. A tunnel sends nothing."""

    host: str
    port: int
    head: bytes | None

    @classmethod
    def parse(cls, head: bytes) -> "ProxyRequest":
        """Parse a complete head. Raises ValueError for what a server might read in another way."""
        line, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        if any(byte in head.replace(b"\r\n", b"") for byte in b"\r\n\0"):
            raise ValueError("the head has line ends of another kind")
        if not (text := line.decode("ascii")).isprintable():
            raise ValueError("the request line has control characters")
        method, target, version = text.split(" ")
        if version not in ("HTTP/1.0", "HTTP/1.1"):
            raise ValueError("only HTTP/1.0 and HTTP/1.1 are forwarded")
        if method == "CONNECT":
            _check_authority(target)
            parts = urlsplit(f"//{target}")
            return cls(parts.hostname or "", parts.port or 443, None)
        parts = urlsplit(target)
        if parts.scheme != "http":
            raise ValueError("the target must be an http:// URL")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        _check_authority(host)
        # One request per connection, since a second one could name another host.
        lines = [f"{method} {path} {version}".encode(), b"Host: " + host.encode(), b"Connection: close"]
        lines += [header for header in headers if _is_forwarded(header)]
        return cls(parts.hostname or "", parts.port or 80, b"\r\n".join(lines) + b"\r\n\r\n")


def _check_authority(text: str) -> None:
    if not _AUTHORITY.fullmatch(text):
        raise ValueError(f"{text!r} is not a host with or without a port")


def _is_forwarded(header: bytes) -> bool:
    name, colon, _ = header.partition(b":")
    if not colon or not name or name.split() != [name]:
        raise ValueError("the head has a line that is not a header")
    return name.lower() not in _DROPPED_HEADERS and not name.lower().startswith(b"proxy-")


class HttpProxy:
    """Forwards HTTP requests and CONNECT tunnels to the allowed hosts, a limited number at a time.

    Further connections wait in the listener's queue. A connection that sends no request, or on which nothing is
    transferred for two minutes, is closed.
    """

    def __init__(self, allowed_hosts: tuple[str, ...]) -> None:
        self._allowed = AllowedHosts(allowed_hosts)
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._tasks: set[asyncio.Task[None]] = set()
        # Not the threads that the program uses for other work: names that are slow to look up could occupy all of them.
        self._lookup_threads = ThreadPoolExecutor(_MAX_LOOKUPS, thread_name_prefix="standfast-proxy")

    @classmethod
    @asynccontextmanager
    async def open(cls, fd: int, allowed_hosts: tuple[str, ...]) -> AsyncIterator["HttpProxy"]:
        proxy = cls(allowed_hosts)
        with socket.socket(fileno=fd) as listener:
            listener.setblocking(False)
            proxy._create_task(proxy._accept_clients(listener))
            try:
                yield proxy
            finally:
                for task in proxy._tasks:
                    task.cancel()
                await asyncio.gather(*proxy._tasks, return_exceptions=True)
                proxy._lookup_threads.shutdown(wait=False, cancel_futures=True)

    def _create_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept_clients(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        has_warned = False
        while True:
            await self._slots.acquire()
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError as problem:
                self._slots.release()
                if not has_warned:
                    _log.warning("the proxy of a worker cannot accept a connection: %s", problem)
                    has_warned = True
                await asyncio.sleep(_ACCEPT_RETRY_DELAY)
                continue
            self._create_task(self._serve_client(client))

    async def _serve_client(self, client: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=client, limit=_MAX_HEAD_BYTES)
        except BaseException:
            client.close()
            self._slots.release()
            raise
        try:
            await self._serve(reader, writer)
            await _close(writer)
        except (OSError, TimeoutError):
            pass
        finally:
            _abort(writer)
            self._slots.release()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await _read_request(reader)
            upstream_reader, upstream = await self._connect(request)
        except RequestRefused as refusal:
            writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            async with asyncio.timeout(_HEAD_TIMEOUT):
                await writer.drain()
            return
        try:
            if request.head is None:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                upstream.write(request.head)
            await _relay(reader, writer, upstream_reader, upstream)
        finally:
            _abort(upstream)

    async def _connect(self, request: ProxyRequest) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if not self._allowed.allows_host(request.host, request.port):
            raise RequestRefused("403 Forbidden")
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                for address in await self._resolve(request):
                    # The address itself, since a second look at the name could find another one.
                    with contextlib.suppress(OSError):
                        return await asyncio.open_connection(address, request.port)
        except (OSError, TimeoutError, UnicodeError):  # UnicodeError: a part of the name is empty or too long
            pass
        raise RequestRefused("502 Bad Gateway")

    async def _resolve(self, request: ProxyRequest) -> list[str]:
        """Return the allowed addresses of the host. Raises RequestRefused when it has only others."""
        look_up = functools.partial(socket.getaddrinfo, request.host, request.port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._lookup_threads, look_up)
        names = dict.fromkeys(str(entry[4][0]) for entry in found)
        allowed = [
            name
            for name in names
            if self._allowed.allows_address(ipaddress.ip_address(name.partition("%")[0]), request.port)
        ]
        if not allowed:
            raise RequestRefused("403 Forbidden")
        return allowed


async def _read_request(reader: asyncio.StreamReader) -> ProxyRequest:
    try:
        async with asyncio.timeout(_HEAD_TIMEOUT):
            return ProxyRequest.parse(await reader.readuntil(b"\r\n\r\n"))
    except TimeoutError:
        raise RequestRefused("408 Request Timeout") from None
    except (ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        raise RequestRefused("400 Bad Request") from None


async def _relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    upstream_reader: asyncio.StreamReader,
    upstream: asyncio.StreamWriter,
) -> None:
    """Copy in both directions until the other side has closed, or nothing was transferred for a while."""
    async with asyncio.timeout(_IDLE_TIMEOUT) as idle, asyncio.TaskGroup() as group:
        sending = group.create_task(_copy(reader, upstream, idle))
        await _copy(upstream_reader, writer, idle)
        sending.cancel()


async def _close(writer: asyncio.StreamWriter) -> None:
    """Send what is buffered and close. Raises TimeoutError when the other side does not read it for a while."""
    writer.close()
    async with asyncio.timeout(_IDLE_TIMEOUT):
        await writer.wait_closed()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close without sending the rest. A transport that is only closed keeps its descriptor until all was read."""
    transport = writer.transport
    if not transport.is_closing() or transport.get_write_buffer_size():
        transport.abort()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
    loop = asyncio.get_running_loop()
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
            idle.reschedule(loop.time() + _IDLE_TIMEOUT)
        sink.write_eof()
    except (OSError, RuntimeError):
        sink.close()
