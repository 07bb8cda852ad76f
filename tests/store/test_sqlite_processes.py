"""SQLite with several processes: killed, opening a new file concurrently, writing concurrently."""

import asyncio
import itertools
import json
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import standfast
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing import closing_backend

SOURCE = Path(standfast.__file__).parent.parent

WRITER = """
import asyncio, sys
from standfast.store.operations import Splice
from standfast.store.sqlite.backend import SqliteBackend

path, name, batches, size, inline, waits = sys.argv[1:]

async def main():
    backend = SqliteBackend(path, inline_commits=inline == "True")
    if waits == "True":
        print("ready", flush=True)
        sys.stdin.readline()
    for batch in range(int(batches)):
        item = b'{"writer": "%s", "batch": %d}' % (name.encode(), batch)
        await backend.commit(Splice(session_id="s", add=(item,) * int(size)))
        print(batch, flush=True)
    await backend.close()

asyncio.run(main())
"""

CROWD = """
import asyncio, os, sys
from standfast.store.operations import Splice
from standfast.store.sqlite.backend import SqliteBackend

path, size = sys.argv[1], int(sys.argv[2])

async def write(name):
    backend = SqliteBackend(path)
    item = b'{"writer": "%d", "batch": 0}' % name
    await backend.commit(Splice(session_id="s", add=(item, item)))
    await backend.close()

# All processes wait for the end of a pipe, which they see at the same time.
start, keep_waiting = os.pipe()
children = []
for name in range(size):
    child = os.fork()
    if child == 0:
        os.close(keep_waiting)
        os.read(start, 1)
        asyncio.run(write(name))
        os._exit(0)
    children.append(child)
os.close(keep_waiting)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def start(
    stack: ExitStack, path: Path, name: str, *, batches: int, size: int, inline: bool = True, waits: bool = False
) -> subprocess.Popen[str]:
    """A process that appends batches and prints the number of each one when it is committed."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(batches), str(size), str(inline), str(waits)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(SOURCE)},
    )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def release(processes: list[subprocess.Popen[str]]) -> None:
    """Let all processes continue at the same time, once each of them is ready."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()


def collect_results(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    return [(process.returncode, errors) for process in processes for _, errors in [process.communicate(timeout=60)]]


def read_batches(path: Path) -> list[tuple[str, int]]:
    """The (writer, batch) of each item in the file, in order."""

    async def read() -> list[tuple[str, int]]:
        async with closing_backend(SqliteBackend(path)) as backend:
            page = await backend.read("s")
            items = [json.loads(row.data) for row in page.rows] if page else []
            return [(item["writer"], item["batch"]) for item in items]

    return asyncio.run(read())


def group_batches(items: list[tuple[str, int]], size: int) -> list[tuple[str, int]]:
    """One entry for each batch; fails if a batch is incomplete or not contiguous."""
    assert len(items) % size == 0
    groups = [items[at : at + size] for at in range(0, len(items), size)]
    assert [group for group in groups if len(set(group)) > 1] == []
    return [group[0] for group in groups]


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "on the thread"])
def test_a_killed_writer_leaves_whole_batches_and_every_acknowledged_one(tmp_path: Path, inline: bool) -> None:
    path, rng = tmp_path / "store.db", random.Random(f"crash {inline}")
    acknowledged: dict[str, int] = {}
    for turn in range(6):
        name = f"writer-{turn}"
        with ExitStack() as stack:
            process = start(stack, path, name, batches=1_000_000, size=3, inline=inline)
            lines = list(itertools.islice(process.stdout, rng.randrange(1, 60)))
            time.sleep(rng.random() * 0.004)
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
            assert process.wait() == -signal.SIGKILL
        acknowledged[name] = len([line for line in lines if line.endswith("\n")])
        written = group_batches(read_batches(path), 3)
        assert len(written) == len(set(written))
        assert [writer for writer, _ in itertools.groupby(written, key=lambda batch: batch[0])] == list(acknowledged)
        for writer, count in acknowledged.items():
            own = [batch for other, batch in written if other == writer]
            assert own == list(range(len(own)))
            assert len(own) in (count, count + 1)


def test_many_processes_open_a_new_file_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    done = subprocess.run(
        [sys.executable, "-c", CROWD, str(path), "32"],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = group_batches(read_batches(path), 2)
    assert sorted(written) == sorted((str(n), 0) for n in range(32))


def test_many_processes_append_to_one_session(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with ExitStack() as stack:
        processes = [start(stack, path, str(n), batches=200, size=2, waits=True) for n in range(4)]
        release(processes)
        assert collect_results(processes) == [(0, "")] * 4
    written = group_batches(read_batches(path), 2)
    assert len(written) == 800
    for n in range(4):
        assert [batch for writer, batch in written if writer == str(n)] == list(range(200))


def test_a_process_killed_while_it_opens_a_new_file_leaves_it_usable(tmp_path: Path) -> None:
    rng = random.Random("opening")
    for turn in range(4):
        path = tmp_path / f"store-{turn}.db"
        with ExitStack() as stack:
            process = start(stack, path, "first", batches=1, size=3, waits=True)
            release([process])
            time.sleep(rng.random() * 0.01)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert group_batches(read_batches(path), 3) in ([], [("first", 0)])
        with ExitStack() as stack:
            assert collect_results([start(stack, path, "second", batches=1, size=3)]) == [(0, "")]
        assert group_batches(read_batches(path), 3)[-1] == ("second", 0)
