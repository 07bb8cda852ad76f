"""A Jupyter kernel and its asyncio client."""

import subprocess
import time
from typing import Any

from jupyter_client.manager import start_new_async_kernel  # type: ignore[import-not-found]

from bench.competitors.server import serve


class Kernel:
    """One kernel at a time: a start ends the one before it, outside of what is timed."""

    def __init__(self) -> None:
        self.manager: Any = None
        self.client: Any = None

    async def start(self) -> float:
        """Seconds until the client has heard that the kernel is ready."""
        await self.stop()
        begin = time.perf_counter()
        self.manager, self.client = await start_new_async_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
        return time.perf_counter() - begin

    async def stop(self) -> None:
        if self.manager is not None:
            self.client.stop_channels()
            await self.manager.shutdown_kernel(now=True)
            self.manager = None

    async def run(self, code: str) -> int:
        """Execute, and wait for idle and for the reply, as a client must to have all output. How much was printed."""
        request, printed = self.client.execute(code), 0
        while True:
            message = await self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != request:
                continue
            if message["msg_type"] == "stream":
                printed += len(message["content"]["text"])
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        await self.client.get_shell_msg(timeout=60)
        return printed

    async def trips(self, calls: int) -> list[float]:
        taken = []
        for _ in range(calls):
            begin = time.perf_counter()
            await self.run("1+1")
            taken.append(time.perf_counter() - begin)
        return taken

    async def rate(self, lines: int) -> float:
        """Megabytes per second of lines of 100 bytes. Jupyter may drop output: what counts is what arrived."""
        begin = time.perf_counter()
        printed = await self.run(f"for _ in range({lines}): print('y' * 99)")
        return printed / 1e6 / (time.perf_counter() - begin)


if __name__ == "__main__":
    kernel = Kernel()
    serve({"start": kernel.start, "trips": kernel.trips, "rate": kernel.rate, "stop": kernel.stop})
