"""An HTTP proxy for one worker, on a listener in the worker's own network namespace.

The worker can connect to this proxy and to nothing else, and the proxy connects only to the allowed hosts.
"""

import asyncio
import contextlib
import fnmatch
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

_MAX_HEAD_BYTES = 65536
_CONNECT_TIMEOUT = 10.0


class HttpProxy:
    """Forwards HTTP requests and CONNECT tunnels to the allowed hosts, which may be patterns."""

    def __init__(self, allowed_hosts: tuple[str, ...]) -> None:
        self.allowed_hosts = tuple(name.lower() for name in allowed_hosts)
        self.connection_counts: Counter[str] = Counter()
        self.refusal_counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    @asynccontextmanager
    async def open(cls, fd: int, allowed_hosts: tuple[str, ...]) -> AsyncIterator["HttpProxy"]:
        proxy = cls(allowed_hosts)
        server = await asyncio.start_server(proxy._handle_client, sock=socket.socket(fileno=fd), limit=_MAX_HEAD_BYTES)
        try:
            yield proxy
        finally:
            server.close()
            for task in proxy._tasks:
                task.cancel()
            await asyncio.gather(*proxy._tasks, return_exceptions=True)

    def is_allowed(self, host: str) -> bool:
        return any(fnmatch.fnmatchcase(host.lower(), pattern) for pattern in self.allowed_hosts)

    async def _handle_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (task := asyncio.current_task()) is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            await self._relay(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.partition(b"\r\n")
        method, target, version = line.decode("latin-1").split(" ", 2)
        tunnel = method.upper() == "CONNECT"
        parts = urlsplit(f"//{target}" if tunnel else target)
        host, port = parts.hostname or "", parts.port or (443 if tunnel else 80)
        if not self.is_allowed(host):
            self.refusal_counts[host] += 1
            writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        self.connection_counts[host] += 1
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                upstream_reader, upstream = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        try:
            if tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = parts.path or "/"
                path += f"?{parts.query}" if parts.query else ""
                # One request per connection, since a second one could name another host.
                lines = [h for h in rest.split(b"\r\n") if not h.lower().startswith((b"proxy-", b"connection:"))]
                headers = b"\r\n".join([h for h in lines if h] + [b"Connection: close"])
                upstream.write(f"{method} {path} {version}\r\n".encode("latin-1") + headers + b"\r\n\r\n")
            await asyncio.gather(_copy(reader, upstream), _copy(upstream_reader, writer))
        finally:
            upstream.close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    with contextlib.suppress(OSError, RuntimeError):
        sink.write_eof()
