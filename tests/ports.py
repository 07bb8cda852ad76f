"""TCP ports of test servers."""

import asyncio
import socket


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def wait_for_port(port: int, process: asyncio.subprocess.Process) -> None:
    """Wait until the process, or a child of it, accepts connections on the port."""
    async with asyncio.timeout(120):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
                continue
            writer.close()
            await writer.wait_closed()
            return
    raise AssertionError((await process.communicate())[0].decode())
