"""Introspection, heartbeats, telemetry, interceptors and files."""

import asyncio
import time

import pytest

from factories.worker_fixtures import in_one_mode
from factories.workers import start_code
from standfast.base.errors import Closed, InvalidInput, NotFound
from standfast.workers import (
    ExecuteMessage,
    HeartbeatMessage,
    ResultMessage,
    SandboxPolicy,
    SessionState,
    WorkerRequestFailed,
)


@in_one_mode
async def test_the_namespace_lists_names_types_and_sizes_never_values(session):
    await session.run("secret = 'hunter2' * 10; n = [1, 2, 3]\ndef f(): pass\nimport math\n_private = 1")
    entries = {entry.name: entry for entry in await session.namespace()}
    assert set(entries) == {"secret", "n", "f", "math"}
    assert (entries["secret"].type, entries["secret"].length) == ("str", 70)
    assert entries["n"].size > 0
    assert "hunter2" not in repr(entries)


@in_one_mode
async def test_the_namespace_runs_no_code_of_the_user(session):
    await session.run(
        "class Trap:\n"
        "    def __repr__(self): raise SystemExit\n"
        "    def __len__(self): raise SystemExit\n"
        "    def __sizeof__(self): raise SystemExit\n"
        "    @property\n"
        "    def shape(self): raise SystemExit\n"
        "t = Trap()"
    )
    assert "t" in {entry.name for entry in await session.namespace()}


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "input('x')"])
async def test_requests_are_answered_while_code_runs(session, code):
    await session.run("visible = 1")
    task = await start_code(session, code, timeout=None)
    assert "visible" in {entry.name for entry in await session.namespace()}
    assert (await session.complete("visi")) == ("visible",)
    beat = await session.heartbeat()
    assert beat.busy
    assert beat.memory_usage > 1_000_000
    assert session.state is SessionState.BUSY
    assert session.usage().pss > 1_000_000
    await session.interrupt()
    await task


@in_one_mode
async def test_completion_follows_attributes_without_evaluating_them(session):
    await session.run(
        "import math\nclass A:\n    def method(self): pass\n    @property\n    def prop(self): raise SystemExit\na = A()"
    )
    assert await session.complete("x = math.sq") == ("math.sqrt",)
    assert await session.complete("a.") == ("a.method", "a.prop")
    assert await session.complete("a.prop.real") == ()
    assert await session.complete("1 + ") == ()


async def test_heartbeats_update_the_info(start):
    session = await start(heartbeat_interval=0.02)
    await session.run("x = 1; y = 2")
    async with asyncio.timeout(60):
        while session.info.namespace_size != 2:
            await asyncio.sleep(0.01)
    assert session.info.memory_usage > 1_000_000
    assert session.info.last_heartbeat_at <= time.time()


async def test_the_info_has_the_negotiated_protocol_and_the_sandbox_level(session, config):
    info = session.info
    assert info.metadata["protocol"] == 1
    assert "ack" in info.metadata["features"]
    if config.mode == "fork":
        assert info.metadata["sandbox"] == config.sandbox.level
    await session.run("1 / 0")
    assert (session.info.execution_count, session.info.error_count) == (1, 1)
    assert info.execution_count == 0


@in_one_mode
async def test_metrics_count_only_when_enabled(start):
    session = await start(enable_metrics=True)
    task = await start_code(session, "while True: pass", timeout=None)
    await session.interrupt()
    await task
    stream = session.execute(ExecuteMessage(code="import time; time.sleep(9)"))
    await anext(stream)
    await stream.aclose()
    await session.run("1")
    assert session.info.metrics == {"cancel_event_triggers": 1, "executions_cancelled": 1}
    assert (await start()).info.metrics == {}


@in_one_mode
async def test_interceptors_see_every_message_in_order(session):
    seen = []
    session.add_message_interceptor(seen.append)
    session.add_message_interceptor(seen.append)
    await session.run("print('x'); 1")
    assert [type(m).__name__ for m in seen] == ["AckMessage", "OutputMessage", "ResultMessage"]
    session.remove_message_interceptor(seen.append)
    await session.run("2")
    assert len(seen) == 3


@in_one_mode
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("1+1", ["AckMessage", "ResultMessage"]),
        ("1/0", ["AckMessage", "ErrorMessage"]),
        ("import os; os.writev(1, [b'x']) and None", ["AckMessage", "OutputMessage", "ResultMessage"]),
        (
            "import os; os.writev(1, [b'x']); sum(range(20_000_000))",
            ["AckMessage", "OutputMessage", "ResultMessage"],
        ),
    ],
)
async def test_interceptors_see_one_acknowledgement_first_whether_or_not_the_worker_sends_it(session, code, expected):
    seen, streamed = [], []
    session.add_message_interceptor(seen.append)
    async for message in session.execute(ExecuteMessage(code=code)):
        streamed.append(message)
    assert [type(message).__name__ for message in seen] == expected
    assert seen == streamed
    assert (session.info.telemetry["violations"], session.info.telemetry["general_queue"]) == (0, 0)


@in_one_mode
async def test_a_failing_interceptor_is_contained_and_then_quarantined(start):
    session = await start(interceptor_strikes=3, interceptor_budget=10.0)

    def broken(message):
        raise RuntimeError("bad interceptor")

    session.add_message_interceptor(broken)
    for n in range(5):
        assert (await session.run(f"{n}")).value == n
    record = session.info.telemetry["interceptors"][0]
    assert (record["calls"], record["errors"], record["quarantined"]) == (3, 3, True)


@in_one_mode
async def test_a_slow_interceptor_is_quarantined(start):
    session = await start(interceptor_strikes=2, interceptor_budget=0.001)
    session.add_message_interceptor(lambda message: time.sleep(0.003))
    for _ in range(4):
        await session.run("1")
    record = session.info.telemetry["interceptors"][0]
    assert record["quarantined"]
    assert record["calls"] == 2
    assert record["slowest"] > 0.002


async def test_raw_messages_reach_the_general_queue(session):
    request = HeartbeatMessage()
    with pytest.raises(TimeoutError):
        await session.receive_message(timeout=0.01)
    await session.send_message(ResultMessage(execution_id="unknown"))
    answer = await session.receive_message(timeout=60)
    assert answer.exception_type == "ProtocolError"
    await session.send_message(request)
    assert (await session.run("1")).value == 1


async def test_files_go_in_and_come_out(session):
    await session.files.write("in/data.csv", "a,b\n1,2\n")
    assert (await session.run("open('in/data.csv').read()")).value == "a,b\n1,2\n"
    await session.run("import os; os.makedirs('out/deep'); open('out/deep/r.bin', 'wb').write(bytes(10))")
    assert await session.files.read("out/deep/r.bin") == bytes(10)
    assert [(f.path, f.size) for f in await session.files.list()] == [
        ("in/data.csv", 8),
        ("out/deep/r.bin", 10),
    ]
    await session.files.remove("in/data.csv")
    with pytest.raises(NotFound):
        await session.files.read("in/data.csv")


@in_one_mode
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", ".", "a\0b"])
async def test_paths_that_lead_out_are_refused(session, path):
    with pytest.raises(InvalidInput):
        await session.files.read(path)
    with pytest.raises(InvalidInput):
        await session.files.write(path, b"x")


async def test_links_planted_by_the_code_are_not_followed(session):
    await session.run(
        "import os\nos.symlink('/etc/passwd', 'link')\nos.symlink('/etc', 'folder')\nos.symlink('/', 'root')\n"
        "os.mkfifo('fifo')"
    )
    for path in ("link", "folder/passwd", "root/etc/passwd", "fifo"):
        with pytest.raises(InvalidInput):
            await session.files.read(path)
    with pytest.raises(InvalidInput):
        await session.files.write("folder/x", b"x")
    assert await session.files.list() == []


async def test_files_of_a_closed_session_are_gone(session):
    await session.terminate()
    with pytest.raises(Closed):
        await session.files.read("x")


async def test_warm_up_code_runs_before_the_session_is_ready(start):
    session = await start(warmup_code="import json\nready = True")
    assert (await session.run("ready")).value is True


@in_one_mode
@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
async def test_an_object_that_raises_fails_the_request_and_not_the_worker(session, is_busy):
    await session.run(
        "class Odd:\n    __class__ = property(lambda self: 1 / 0)\nodd = Odd()\n"
        "class Meta(type):\n    __module__ = property(lambda self: 1 / 0)\n"
        "class Thing(metaclass=Meta): pass\nthing = Thing()"
    )
    task = await start_code(session, "import time\nwhile True: time.sleep(0.01)", timeout=None) if is_busy else None
    with pytest.raises(WorkerRequestFailed, match="ZeroDivisionError"):
        await session.complete("odd.x")
    with pytest.raises(WorkerRequestFailed, match="ZeroDivisionError"):
        await session.namespace()
    assert (await session.heartbeat()).busy is is_busy
    if task is not None:
        assert (await session.interrupt()).state == "preserved"
        await task
    assert (await session.run("1")).value == 1


@in_one_mode
async def test_a_reply_above_the_frame_limit_fails_the_request(start):
    session = await start(frame_limit=4096)
    await session.run("for n in range(500): globals()[f'name{n}'] = n")
    with pytest.raises(WorkerRequestFailed, match="FrameTooLarge"):
        await session.namespace()
    assert (await session.run("name7")).value == 7


@in_one_mode
async def test_an_interceptor_that_raises_anything_is_contained(start):
    session = await start(interceptor_strikes=3)

    def cancelled(_message):
        raise asyncio.CancelledError

    session.add_message_interceptor(cancelled)
    result = await session.run("print('x'); 5", timeout=60)
    assert (result.stdout, result.value) == ("x\n", 5)
    assert session.info.telemetry["interceptors"][0]["quarantined"]


@in_one_mode
async def test_an_interceptor_that_was_removed_sees_nothing_more(session):
    seen = []

    def first(_message):
        session.remove_message_interceptor(seen.append)
        session.remove_message_interceptor(first)

    session.add_message_interceptor(first)
    session.add_message_interceptor(seen.append)
    await session.run("1")
    assert seen == []


async def test_directories_nested_too_deep_are_not_listed(session):
    await session.run("import os\nfor _ in range(500):\n    os.mkdir('d'); os.chdir('d')")
    with pytest.raises(InvalidInput, match="nested more than 64 levels"):
        await session.files.list()
    assert (await session.run("1")).value == 1


async def test_a_file_that_does_not_fit_is_refused_with_the_reason(sandboxed):
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", disk_mb=2))
    with pytest.raises(InvalidInput, match="No space left"):
        await session.files.write("big", bytes(3 << 20))
    await session.files.write("big", b"small")
    assert await session.files.read("big") == b"small"


async def test_a_path_that_is_not_a_file_is_named(session):
    await session.run("import os; os.mkdir('folder'); open('file', 'w')")
    with pytest.raises(InvalidInput, match="'file' is not a directory"):
        await session.files.write("file/below", b"")
    with pytest.raises(InvalidInput, match="Is a directory"):
        await session.files.remove("folder")
    with pytest.raises(NotFound, match="'nowhere'"):
        await session.files.list("nowhere")


async def test_code_that_moves_its_directory_away_loses_its_files_and_not_the_session(session):
    await session.run("import os; here = os.getcwd(); os.rename(here, here + '-gone'); os.symlink('/etc', here)")
    for attempt in (session.files.list(), session.files.read("passwd"), session.files.write("x", b"")):
        with pytest.raises(InvalidInput, match="moved or removed"):
            await attempt
    await session.restart()
    assert session.info.metadata["left_behind"] == (".",)
    assert await session.files.list() == []
