"""A realtime server in its own process: prints its URL and serves until its standard input ends."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from standfast.realtime.local import ToneTTS
from standfast.testing import RealtimeServer

LONG = "a long answer that goes on and on " * 8


async def serve(greetings: int) -> None:
    """Serve ``greetings`` short answers, and long ones after that."""
    script = ["Hello."] * greetings + [LONG] * 1000
    async with RealtimeServer(script, tts=ToneTTS(), pace=1.0) as server:
        print(server.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def server_process(greetings: int = 0) -> Iterator[str]:
    """Start a server that sends audio in real time, and yield its URL."""
    command = [sys.executable, "-m", "bench.realtime_server", str(greetings)]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
