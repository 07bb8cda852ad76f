"""Examples as processes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"


async def run_example(script: str, *arguments: str, cwd: Path) -> str:
    """Run an example to its end and return its output."""
    async with start_example(script, *arguments, cwd=cwd) as process:
        out, _ = await process.communicate()
    text = out.decode()
    assert process.returncode == 0, text
    return text


@asynccontextmanager
async def start_example(script: str, *arguments: str, cwd: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start an example as a process, which is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLES / script), *arguments, cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.communicate()
