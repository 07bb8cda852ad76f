"""No data leaves the machine unless a destination is configured."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from doc_pages import ROOT, Block, iter_blocks

WATCHED = """
import ast, asyncio, inspect, json, sys

reached = []


def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        if isinstance(arguments[1], tuple):  # the other addresses are those of local sockets
            reached.append(arguments[1][0])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        reached.append(str(arguments[0]))


sys.addaudithook(watch)
code = compile(sys.stdin.read(), "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def main():
    outcome = eval(code, {"__name__": "__main__"})
    if inspect.iscoroutine(outcome):
        await outcome


asyncio.run(main())
import standfast.tracing

standfast.tracing.flush_traces()
print(json.dumps(reached))
"""
BLOCKS = [block for block in iter_blocks(ROOT / "README.md") if block.language == "python"]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_an_example_reaches_no_other_machine_even_if_there_is_a_key_of_openai(block: Block, tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": os.environ["PATH"], "OPENAI_API_KEY": "sk-none"}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED], input=block.body, cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1])) <= {"127.0.0.1", "localhost", "::1"}
