"""``standfast serve`` as a process."""

import asyncio
import os
import re
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from standfast.cli.commands.serve import TOKEN_VARIABLE
from standfast.client import Client

AGENTS = Path(__file__).parent.parent / "server" / "speaker.py"


class ServeProcess:
    """A running ``standfast serve`` and the URL that it printed."""

    def __init__(self, process, url, token):
        self.process, self.url, self.token = process, url, token

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])

    @property
    def client(self):
        return Client(self.url, token=self.token)

    def list_children(self):
        return list_children(self.process.pid)


def list_children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@asynccontextmanager
async def start_server(store, *options, token=None, program=("-m", "standfast")):
    """Start a server on a free port; ``program`` is what the interpreter runs as the command ``standfast``."""
    environment = os.environ | ({} if token is None else {TOKEN_VARIABLE: token})
    arguments = [*program, "serve", str(AGENTS), "--store", store, "--port", "0", "--lease", "3", *options]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"(http://[^/]+)/\?token=(\S+)\n", line)
        assert found, (line, await errors)
        yield ServeProcess(process, *found.groups())
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await errors
        process._transport.close()
