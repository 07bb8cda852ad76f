"""Captures of a workspace, and restoring them in other workers."""

import asyncio

import msgspec
import pytest

from factories.worker_fixtures import in_one_mode
from standfast.base.errors import Closed
from standfast.workers import CaptureFailed, SandboxPolicy, WorkerSession, WorkspaceRefused

BLOCK = """
import os, time
class Blocking:
    def __reduce__(self):
        open('blocked', 'w').close()
        while not os.path.exists('go'): time.sleep(0.01)
        return (str, ('went',))
"""
PIDS = "import os; sorted(int(name) for name in os.listdir('/proc') if name.isdecimal() and int(name) not in (1, os.getpid()))"


async def store(session, chunks, known=(), **options):
    """Capture a session and store the chunks. Returns the manifest."""
    capture = await session.capture(known, **options)
    async for digest, data in capture:
        assert digest not in chunks
        chunks[digest] = data
    return capture.manifest


def fetching(chunks):
    async def fetch(digest):
        return chunks[digest]

    return fetch


async def move(session, start):
    """Capture a session, and restore it in a new one. Returns the new one and the report."""
    chunks = {}
    manifest = await store(session, chunks)
    other = await start()
    return other, await other.restore_workspace(manifest.encode(), fetching(chunks))


async def wait_for_file(session, path):
    while path not in [entry.path for entry in await session.files.list()]:
        await asyncio.sleep(0.01)


async def test_variables_and_files_move_to_another_worker(session, start):
    await session.run("import math\nfrom json import dumps\nx = {'n': [1, 2]}\ny = x['n']\n_hidden = 3\n7 * 6")
    await session.files.write("data/deep/table.csv", "a,b\n1,2\n")
    await session.run("import os; os.chmod('data/deep/table.csv', 0o640); os.mkdir('empty'); os.chdir('data')")
    other, report = await move(session, start)
    assert set(report.kept) >= {"math", "dumps", "x", "y", "_hidden", "os"}
    assert (report.lost, report.lost_files, report.files) == ({}, {}, ("data/deep/table.csv",))
    found = await other.run(
        "y.append(3)\n[x, _hidden, dumps(y), math.floor(1.5), open('deep/table.csv').read(),"
        " oct(os.stat('deep/table.csv').st_mode), os.listdir('../empty')]"
    )
    assert found.value == [{"n": [1, 2, 3]}, 3, "[1, 2, 3]", 1, "a,b\n1,2\n", "0o100640", []]


CODE = """
from dataclasses import dataclass, field
import enum, functools, random
@dataclass
class Point:
    x: int
    tags: list = field(default_factory=list)
    total = 0
class Special(Point):
    def double(self):
        return Special(super().__eq__(None) is NotImplemented and self.x * factor)
Point.total = 9
class Colour(enum.Enum):
    RED = 1
p = Special(4)
same = p
colours = [Colour.RED]
def make():
    count = 0
    def increase():
        nonlocal count
        count += 1
        return count
    def read():
        return count
    return increase, read
increase, read = make()
increase()
def countdown():
    def inner(n):
        return 0 if n == 0 else inner(n - 1)
    return inner
recursive = countdown()
factor = 2
def scale(value, *, by=None) -> int:
    "Scales."
    return value * (by or factor)
scale.note = ['kept']
half = functools.partial(scale, by=5)
unpicklable = (n for n in range(3))
"""


@in_one_mode
async def test_classes_closures_and_functions_behave_as_before(session, start):
    assert (await session.run(CODE)).error is None
    other, report = await move(session, start)
    assert set(report.lost) == {"unpicklable"}
    assert "generator" in report.lost["unpicklable"]
    result = await other.run(
        "factor = 3\n"
        "[increase(), read(), recursive(5), scale(2), scale.__doc__, scale.note, half(2), Point.total, same is p,"
        " type(p) is Special, p.double().x, colours[0] is Colour.RED, scale.__globals__ is globals()]"
    )
    assert result.value == [2, 2, 0, 6, "Scales.", ["kept"], 10, 9, True, True, 12, True, True]


CACHED = """
import functools, typing
class Point(typing.NamedTuple):
    x: int
    y: int = 2
    def add(self): return self.x + self.y
point = Point(1)
count = 0
@functools.lru_cache(maxsize=7)
def fib(n):
    global count
    count += 1
    return n if n < 2 else fib(n - 1) + fib(n - 2)
class Table:
    @functools.cache
    def get(self, n): return [n]
    @functools.cached_property
    def size(self): return [9]
table = Table()
same = fib
seen = table.size
_ = fib(10)
"""


@in_one_mode
async def test_cached_functions_and_named_tuples_move_to_another_worker(session, start):
    await session.run(CACHED)
    target, report = await move(session, start)
    assert report.lost == {}
    result = await target.run("point.add(), type(point) is Point, Point(3)._asdict(), fib(20), fib is same, count")
    assert result.value == [3, True, {"x": 3, "y": 2}, 6765, True, 32], result
    result = await target.run("fib.cache_parameters(), table.get(1) is table.get(1), fib.cache_info().currsize")
    assert result.value == [{"maxsize": 7, "typed": False}, True, 7], result
    result = await target.run("table.size is seen, Table().size")
    assert result.value == [True, [9]], result


@in_one_mode
async def test_random_numbers_continue_in_another_worker(session, start):
    await session.run("import random, numpy as np; rng = np.random.default_rng(3); random.gauss(0, 1)")
    draw = "[random.random(), random.gauss(0, 1), float(np.random.rand()), float(rng.random())]"
    other, _ = await move(session, start)
    assert (await other.run(draw)).value == (await session.run(draw)).value


@in_one_mode
async def test_a_workspace_can_move_repeatedly(session, start):
    await session.run(CODE)
    for _ in range(3):
        session, report = await move(session, start)
        assert set(report.lost) == {"unpicklable"} or not report.lost
    assert (await session.run("[increase(), type(p) is Special, colours[0] is Colour.RED]")).value == [2, True, True]


@in_one_mode
async def test_arrays_and_frames_move_to_another_worker(session, start):
    await session.run(
        "import numpy as np, pandas as pd\na = np.arange(300_000.0)\nconst = np.ones(20_000)\n"
        "const.flags.writeable = False\ndf = pd.DataFrame({'n': a, 's': 'text'})\nframes = [df]\nseries = pd.Series([1.5])"
    )
    assert "series" in {entry.name for entry in await session.namespace()}
    other, report = await move(session, start)
    assert report.lost == {}
    result = await other.run(
        "a[0] = 5; df.loc[0, 'n'] = 7\n"
        "[float(a[0]), frames[0] is df, float(df['n'].iloc[0]), float(a.sum()), df.shape, const.flags.writeable]"
    )
    assert result.value == [5.0, True, 7.0, 300_000 * 299_999 / 2 + 5, [300_000, 2], False]


@in_one_mode
async def test_only_what_has_changed_is_sent(session):
    await session.run(
        "import random, numpy as np\nbig = np.arange(500_000.0)\nsmall = [1]\nopen('big.bin', 'wb').write(bytes(2_500_000))\n"
        "class Late:\n    items = [small]\nlate = Late()"
    )
    chunks = {}
    first = await store(session, chunks)
    assert len(chunks) > 3
    await session.run("1")
    unchanged = {}
    second = await store(session, unchanged, first)
    assert sum(map(len, unchanged.values())) < 10_000
    assert second.size == pytest.approx(first.size, abs=1000)
    await session.run("small.append(2); big[0] = 1; open('new.txt', 'w').write('new')")
    changed = {}
    third = await store(session, changed, second)
    # One chunk of the array, the small variables, the new file.
    assert len(changed) == 3
    assert third.digests <= {*chunks, *unchanged, *changed}


@in_one_mode
async def test_a_file_that_has_not_changed_is_recognised_by_its_status(session):
    await session.run("import os; open('a.bin', 'wb').write(b'x'); os.utime('a.bin', ns=(5, 5))")
    while (first := await store(session, {})).files[0].inode == 0:
        await asyncio.sleep(0.02)  # Until the change is older than the resolution of the clock.
    forged = msgspec.structs.replace(
        first.files[0], content=msgspec.structs.replace(first.files[0].content, chunks=(b"k" * 32,))
    )
    known = msgspec.structs.replace(first, files=(forged,))
    assert (await store(session, {}, known)).files == (forged,)
    await session.run("open('a.bin', 'wb').write(b'y'); os.utime('a.bin', ns=(5, 5))")
    assert (await store(session, {}, known)).files[0].content.chunks not in (
        (b"k" * 32,),
        first.files[0].content.chunks,
    )


async def test_a_capture_holds_the_moment_of_the_call(session, start):
    await session.run("x = [1]; open('f', 'wb').write(b'before' * 500_000)")
    capture = await session.capture()
    await session.run("x.append(2); open('f', 'r+b').write(b'AFTER!'); open('later', 'w').close()")
    chunks = {digest: data async for digest, data in capture}
    other = await start()
    await other.restore_workspace(capture.manifest, fetching(chunks))
    assert (await other.run("import os; [x, open('f', 'rb').read(6), os.listdir()]")).value == [[1], b"before", ["f"]]


@in_one_mode
async def test_what_cannot_be_kept_is_named(session, start):
    await session.run(
        "import os, threading\nopen('file', 'w').close()\nhandle = open('file')\nlock = threading.Lock()\n"
        "os.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); ok = 1"
    )
    other, report = await move(session, start)
    assert set(report.lost) == {"handle", "lock"}
    assert set(report.lost_files) == {"link", "pipe"}
    assert (await other.run("[ok, os.listdir()]")).value == [1, ["file"]]


@in_one_mode
async def test_no_time_of_a_file_and_no_long_name_keeps_a_workspace_from_being_captured(session, start):
    await session.run(
        "import os\nfor name, year in (('late', 6000), ('early', 1)):\n    open(name, 'w').close()\n"
        "    os.utime(name, (31556952 * (year - 1970),) * 2)\nglobals()['x' * 5000] = 1; ok = 1"
    )
    other, report = await move(session, start)
    assert list(report.lost.values()) == ["its name has more than 4096 characters"]
    assert (await other.run("[ok, sorted(os.listdir())]")).value == [1, ["early", "late"]]


async def test_code_runs_during_a_capture(session):
    await session.run(BLOCK + "thing = Blocking()")
    capture = await session.capture()
    await wait_for_file(session, "blocked")
    with pytest.raises(Closed):
        capture.manifest  # noqa: B018
    assert (await session.run("6 * 7")).value == 42
    # Stopping other code does not end the capture.
    assert (await session.run("while True: pass", timeout=0.2)).timed_out
    await session.run("open('go', 'w').close()")
    assert [name for _ in [0] async for _, name in capture]
    assert "thing" in {variable.name for variable in capture.manifest.variables}


async def test_a_killed_copy_costs_the_capture_and_not_the_session(session):
    await session.run("import os\nclass Bomb:\n    def __reduce__(self): os.kill(os.getpid(), 9)\nbomb = Bomb(); x = 1")
    capture = await session.capture()
    with pytest.raises(CaptureFailed) as caught:
        async for _ in capture:
            pass
    assert caught.value.kind == "worker"
    with pytest.raises(CaptureFailed):
        capture.manifest  # noqa: B018
    assert (await session.run("del bomb; x")).value == 1
    assert "x" in {variable.name for variable in (await store(session, {})).variables}


async def test_a_capture_that_takes_too_long_is_ended(sandboxed):
    session = await sandboxed()
    await session.run(BLOCK + "thing = Blocking()")
    capture = await session.capture(timeout=0.3)
    with pytest.raises(CaptureFailed) as caught:
        async for _ in capture:
            pass
    assert caught.value.kind == "timeout"
    while (await session.run(PIDS)).value:
        await asyncio.sleep(0.01)


async def test_a_capture_can_be_abandoned(sandboxed):
    session = await sandboxed()
    await session.run(BLOCK + "thing = Blocking()")
    async with await session.capture():
        await wait_for_file(session, "blocked")
    while (await session.run(PIDS)).value:
        await asyncio.sleep(0.01)


async def test_a_capture_that_is_cancelled_while_it_waits_leaves_nothing(sandboxed):
    session = await sandboxed()
    running = asyncio.create_task(session.run("import time; time.sleep(0.5)"))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(session.capture())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await running
    assert (await session.run(PIDS)).value == []


async def test_a_copy_that_uses_too_much_memory_costs_the_capture_and_not_the_session(sandboxed):
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", memory_mb=256, cgroup=False))
    await session.run(
        BLOCK + "big = bytearray(215_000_000)\n"
        "class Dirty(Blocking):\n"
        "    def __reduce__(self):\n"
        "        for n in range(0, len(big), 4096): big[n] = 1\n"
        "        return super().__reduce__()\n"
        "for n in range(0, len(big), 4096): big[n] = 2\n"
        "thing = Dirty()"
    )
    capture = await session.capture()
    with pytest.raises(CaptureFailed) as caught:
        async for _ in capture:
            pass
    assert (caught.value.kind, "memory" in caught.value.detail) == ("worker", True)
    assert (await session.run("big[0]")).value == 2


async def test_the_end_of_a_session_ends_its_captures(config):
    async with WorkerSession(config) as session:
        await session.run(BLOCK + "thing = Blocking()")
        capture = await session.capture()
        await wait_for_file(session, "blocked")
    with pytest.raises(CaptureFailed) as caught:
        async for _ in capture:
            pass
    assert caught.value.kind in ("closed", "worker")


@in_one_mode
@pytest.mark.parametrize(
    "code", ["open('f', 'wb').write(bytes(20_000))", "x = bytes(20_000)", "x = list(range(20_000))"]
)
async def test_a_workspace_above_the_limit_is_not_captured(session, code):
    await session.run(code)
    with pytest.raises(CaptureFailed) as caught:
        await store(session, {}, max_bytes=10_000)
    assert caught.value.kind == "too-large"
    assert (await session.run("1")).value == 1
    assert (await store(session, {}, max_bytes=1_000_000)).size > 20_000


FORGE = """
import os, stat, struct, hashlib
class Forger:
    def __reduce__(self):
        sockets = [int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) > 4]
        for fd in sockets:
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    os.write(fd, {forged})
            except OSError:
                pass
        return (str, ())
forger = Forger()
"""
FORGERIES = {
    "a wrong digest": "struct.pack('>cI32s', b'C', 3, bytes(32)) + b'abc'",
    "a chunk that nothing needs": "struct.pack('>cI32s', b'C', 3, hashlib.sha256(b'abc').digest()) + b'abc'",
    "an unknown frame": "struct.pack('>cI32s', b'?', 3, bytes(32)) + b'abc'",
    "a frame of gigabytes": "struct.pack('>cI32s', b'C', 0xFFFFFFFF, bytes(32))",
    "a manifest that is none": "struct.pack('>cI32s', b'M', 3, bytes(32)) + b'abc'",
    "a manifest without its chunks": "struct.pack('>cI32s', b'M', 88, bytes(32)) + bytes.fromhex("
    "'83a6707974686f6ea3332e31a87374617465920191c420') + bytes(32) + bytes.fromhex('a473697a6501').ljust(34, b'x')",
}


@in_one_mode
@pytest.mark.parametrize("forged", FORGERIES.values(), ids=FORGERIES)
async def test_what_user_code_writes_into_the_capture_is_refused(session, forged):
    await session.run(FORGE.replace("{forged}", forged))
    with pytest.raises(CaptureFailed) as caught:
        await store(session, {})
    assert caught.value.kind == "protocol"
    assert (await session.run("del forger; 1")).value == 1


@in_one_mode
@pytest.mark.parametrize("damage", ["wrong", "cut", "missing", "unknown encoding", "cut manifest", "foreign", "too new", "python", "too large"])  # fmt: skip
async def test_a_workspace_that_is_not_whole_is_refused_and_nothing_is_loaded(session, start, damage):
    await session.run("x = 'new' * 1000; y = 1; open('f', 'w').write('text')")
    chunks = {}
    manifest = await store(session, chunks)
    data, digest, limit = manifest.encode(), manifest.files[0].content.chunks[0], 1 << 28
    if damage in ("wrong", "cut", "unknown encoding"):
        chunks[digest] = {"wrong": b"\0TEXT", "cut": b"\0tex", "unknown encoding": b"\x09text"}[damage]
    elif damage == "missing":
        chunks[digest] = None
    elif damage == "python":
        data = msgspec.structs.replace(manifest, python="3.5").encode()
    elif damage == "too large":
        limit = 100
    else:
        data = {"cut manifest": data[:-1], "foreign": b"GIF89a" + data, "too new": data.replace(b"\x01", b"\x07", 1)}[
            damage
        ]
    kind = {
        "missing": "missing", "foreign": "foreign", "too new": "too-new", "python": "python-version",
        "too large": "too-large",
    }.get(damage, "damaged")  # fmt: skip
    other = await start()
    await other.run("x = 'old'")
    with pytest.raises(WorkspaceRefused) as caught:
        await other.restore_workspace(data, fetching(chunks), max_bytes=limit)
    assert caught.value.kind == kind
    assert (await other.run("import os; [x, 'y' in dir(), os.listdir()]")).value == ["old", False, []]


@in_one_mode
async def test_a_group_that_cannot_be_loaded_is_lost_as_a_whole(session, start):
    await session.files.write("helper.py", "class Thing:\n    pass\n")
    await session.run("import helper\nt = helper.Thing(); u = [t]; alone = 1")
    chunks = {}
    manifest = msgspec.structs.replace(await store(session, chunks), files=(), size=0)
    manifest = msgspec.structs.replace(manifest, size=sum(content.size for content in manifest.iterate_contents()))
    other = await start()
    report = await other.restore_workspace(manifest, fetching(chunks))
    assert set(report.lost) == {"helper", "t", "u"}
    assert (await other.run("[alone, 't' in dir(), 'u' in dir()]")).value == [1, False, False]
