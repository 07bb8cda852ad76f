"""Examples as their readers start them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


async def printed(script: str, *words: str, cwd: Path) -> str:
    """What an example prints when it is run to its end."""
    async with started(script, *words, cwd=cwd) as process:
        out, _ = await process.communicate()
    text = out.decode()
    assert process.returncode == 0, text
    return text


@asynccontextmanager
async def started(script: str, *words: str, cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """An example as a process of its own; gone when the block is left."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / script), *words, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()
