"""A server that receives webhooks."""

import asyncio
import ssl
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Receiver:
    url: str = ""
    answers: list[str] = field(default_factory=list)
    """The status lines of the next answers; afterwards 204. "silence" answers nothing, "later" when allowed to."""
    allowed: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """Path, headers and body of each request."""
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, reader, writer):
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.rstrip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
            body = await reader.readexactly(int(headers["content-length"]))
            answer = self.answers.pop(0) if self.answers else "204 No Content"
            async with self.arrived:
                self.requests.append((first.split()[1], headers, body))
                self.arrived.notify_all()
            if answer == "silence":
                await reader.read()
                return
            if answer == "later":
                await self.allowed.wait()
                answer = "204 No Content"
            writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def wait_for(self, count):
        async with self.arrived:
            await asyncio.wait_for(self.arrived.wait_for(lambda: len(self.requests) >= count), 120)
        return self.requests


@asynccontextmanager
async def open_receiver(context: ssl.SSLContext | None = None):
    receiver = Receiver()
    server = await asyncio.start_server(receiver.handle, "127.0.0.1", 0, ssl=context)
    scheme = "http" if context is None else "https"
    receiver.url = f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}/hook?room=1"
    async with server:
        yield receiver
