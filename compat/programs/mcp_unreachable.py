import asyncio
import socket

from agents import UserError
from agents.mcp import MCPServerSse, MCPServerStreamableHttp

# A port that is taken and does not listen.
taken = socket.socket()
taken.bind(("127.0.0.1", 0))
url = f"http://127.0.0.1:{taken.getsockname()[1]}/mcp"


async def main() -> None:
    for kind in (MCPServerSse, MCPServerStreamableHttp):
        try:
            async with kind(name="files", params={"url": url}):
                print("connected")
        except UserError:
            print("not connected")


asyncio.run(main())
