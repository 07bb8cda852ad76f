"""A Jupyter kernel and its asyncio client."""

import subprocess
import time
from typing import Any

from jupyter_client.manager import start_new_async_kernel  # type: ignore[import-not-found]

from bench.competitors.server import serve


class Kernel:
    """One kernel at a time: a start first stops the previous kernel, which is not timed."""

    def __init__(self) -> None:
        self.manager: Any = None
        self.client: Any = None

    async def start(self) -> float:
        """Return the seconds until the client knows that the kernel is ready."""
        await self.stop()
        start = time.perf_counter()
        self.manager, self.client = await start_new_async_kernel(kernel_name="python3", stderr=subprocess.DEVNULL)
        return time.perf_counter() - start

    async def stop(self) -> None:
        if self.manager is not None:
            self.client.stop_channels()
            await self.manager.shutdown_kernel(now=True)
            self.manager = None

    async def run(self, code: str) -> int:
        """Execute code, wait for idle and for the reply, and return the number of printed characters."""
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
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            await self.run("1+1")
            times.append(time.perf_counter() - start)
        return times

    async def rate(self, lines: int) -> float:
        """Return the megabytes per second of lines of 100 bytes. Jupyter may drop output; received output counts."""
        start = time.perf_counter()
        printed = await self.run(f"for _ in range({lines}): print('y' * 99)")
        return printed / 1e6 / (time.perf_counter() - start)


if __name__ == "__main__":
    kernel = Kernel()
    serve({"start": kernel.start, "trips": kernel.trips, "rate": kernel.rate, "stop": kernel.stop})
