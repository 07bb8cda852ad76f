"""Workers that hang, send wrong messages, flood, exit at the wrong moment or close their descriptors.

User code shares the process with the protocol, so it can do all of this on descriptor 3.
"""

import asyncio
import os
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import time

import pytest

from factories.workers import wait_until
from standfast.base.errors import InvalidInput
from standfast.workers import (
    ErrorMessage,
    ExecuteMessage,
    PoolConfig,
    SandboxPolicy,
    SessionConfig,
    SessionPool,
    SessionState,
    StartFailed,
    WorkerDied,
    WorkerRequestFailed,
    WorkerSession,
)
from standfast.workers.wire import encode, encode_frame
from standfast.workers.wire import messages as m


def write_to_protocol(data: bytes) -> str:
    return f"import os\nrest = {data!r}\nwhile rest: rest = rest[os.write(3, rest):]\n"


async def test_garbage_in_a_frame_is_reported_and_nothing_breaks(session):
    result = await session.run(write_to_protocol(encode_frame(b"\xc1garbage") + encode_frame(b"")) + "'done'")
    assert result.value == "done"
    assert session.info.telemetry["violations"] == 2
    report = await session.receive_message(ErrorMessage, timeout=60)
    assert report.exception_type == "ProtocolError"
    assert (await session.run("1")).value == 1


async def test_an_unknown_message_is_reported_and_nothing_breaks(session):
    import msgspec

    unknown = msgspec.msgpack.encode({"type": "teleport", "to": "mars"})
    assert (await session.run(write_to_protocol(encode_frame(unknown)) + "2")).value == 2
    assert "teleport" in (await session.receive_message(ErrorMessage, timeout=60)).exception_message


async def test_an_oversized_frame_ends_the_execution_with_a_clear_error_not_the_session(start):
    session = await start(frame_limit=8192)
    result = await session.run("import os; os.write(3, (20_000).to_bytes(4, 'big') + bytes(20_000)); 3")
    assert result.error.exception_type == "FrameTooLarge"
    assert (await session.run("4")).value == 4


async def test_an_impossible_frame_length_kills_the_worker(start):
    session = await start(frame_limit=8192)
    result = await session.run(write_to_protocol(b"\xff\xff\xff\xff") + "import time; time.sleep(60)", timeout=60)
    assert result.error.exception_type == "FrameTooLarge"
    await wait_until(lambda: session.state is SessionState.ERROR)
    assert session.info.cause.kind == "protocol"


async def test_messages_of_other_executions_are_not_delivered(session):
    lies = [
        m.ResultMessage(execution_id="someone-else", value="stolen"),
        m.AckMessage(of="someone-else"),
        m.InputMessage(prompt="?", execution_id="someone-else"),
        m.NamespaceMessage(of="nothing"),
        m.ErrorMessage(exception_type="X", execution_id="someone-else"),
        m.ExecuteMessage(code="host code"),
        m.ShutdownMessage(),
    ]
    seen = []
    code = write_to_protocol(b"".join(encode_frame(encode(lie)) for lie in lies)) + "'mine'"
    async for message in session.execute(ExecuteMessage(code=code)):
        seen.append(message)
    assert [type(message).__name__ for message in seen] == ["AckMessage", "ResultMessage"]
    assert seen[-1].value == "mine"


async def test_a_worker_cannot_rewrite_what_was_negotiated(session):
    before = session.info.metadata
    lies = m.HelloMessage(versions=(99,), settings={"notes": 5, "python": "0"})
    assert (
        await session.run(write_to_protocol(encode_frame(encode(lies)) + encode_frame(encode(m.ReadyMessage()))) + "1")
    ).value == 1
    assert session.info.metadata == before


async def test_a_worker_cannot_fill_the_host_with_descriptors(session):
    before = len(os.listdir("/proc/self/fd"))
    payload = encode_frame(encode(m.HeartbeatMessage()))
    code = f"import os, socket\ns = socket.socket(fileno=os.dup(3))\nfor _ in range(50): socket.send_fds(s, [{payload!r}], [0, 1, 2])\n'sent'"
    assert (await session.run(code)).value == "sent"
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_worker_cannot_make_its_supervisor_kill_another_process(session):
    victim = await asyncio.create_subprocess_exec("sleep", "60")
    try:
        token = session._worker.router.connection.token
        code = f"import os, socket\nsocket.socket(fileno=os.dup(4)).send({f'{token} {victim.pid}'.encode()!r})\n'sent'"
        assert (await session.run(code)).value == "sent"
        assert (await session.run("1")).value == 1
        await session.terminate()
        assert victim.returncode is None
        assert is_alive(victim.pid)
    finally:
        victim.kill()
        await victim.wait()


async def test_a_second_result_is_not_a_second_end(session):
    message = ExecuteMessage(code="")
    fake = m.ResultMessage(execution_id=message.id, value="forged")
    import msgspec

    # The print brings the acknowledgement, without which no result is believed.
    message = msgspec.structs.replace(
        message, code="print()\n" + write_to_protocol(encode_frame(encode(fake))) + "'real'"
    )
    seen = [item async for item in session.execute(message)]
    assert seen[-1].value == "forged", "a worker may lie about itself, once"
    for n in range(3):
        assert (await session.run(f"{n}")).value == n


async def test_a_worker_that_closes_the_protocol_is_killed(session):
    result = await session.run("import os, time; os.close(3); time.sleep(60)", timeout=60)
    assert (result.state, result.error.cause) == ("lost", "protocol")


async def test_a_worker_that_closes_its_pipes_continues_without_output(session):
    assert (await session.run("import os; os.close(1); os.close(2); 5")).value == 5
    assert (await session.run("6")).value == 6


async def test_a_worker_that_dies_inside_a_frame_is_noticed(session):
    result = await session.run(write_to_protocol(struct.pack(">I", 1000) + b"half") + "os._exit(5)")
    assert (result.state, result.error.cause) == ("lost", "exit")


async def test_a_flood_of_messages_does_not_starve_the_others(start):
    noisy, quiet = await start(), await start()
    spam = encode_frame(encode(m.DisplayMessage(data={"text/plain": "x" * 1000})))
    task = asyncio.create_task(noisy.run(f"import os\nwhile True: os.write(3, {spam!r})", timeout=None))
    await wait_until(lambda: noisy.info.telemetry["general_dropped"] > 0)
    for n in range(20):
        assert (await quiet.run(f"{n}", timeout=60)).value == n
    await noisy.terminate()
    assert (await task).state == "lost"


@pytest.mark.parametrize("last", ["ack", "output", "display", "input", "result"])
async def test_a_worker_that_dies_right_after_a_message_ends_the_call(session, last):
    code = {
        "ack": "import os; os._exit(1)",
        "output": "import os; os.write(1, b'x'); os._exit(1)",
        "display": "import os; display(1); os._exit(1)",
        "input": "import os, threading; threading.Timer(0.05, lambda: os._exit(1)).start(); input()",
        "result": "import os, threading; threading.Timer(0.02, lambda: os._exit(1)).start()",
    }[last]
    result = await asyncio.wait_for(session.run(code, timeout=None), 60)
    if last == "result":
        assert result.ok
        await wait_until(lambda: session.state is SessionState.ERROR)
    else:
        assert (result.state, result.error.cause) == ("lost", "exit")
    with pytest.raises(WorkerDied):
        await session.run("1")


@pytest.fixture
def interpreter(tmp_path):
    """A program that is started in place of Python and misbehaves."""

    def make(body: str) -> str:
        path = tmp_path / "python"
        path.write_text(
            f"#!{sys.executable}\nimport os, socket, struct, sys, time\nfd = int(sys.argv[-1])\n"
            + textwrap.dedent(body)
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("time.sleep(60)", "not ready"),
        ("os._exit(3)", "ended"),
        ("os.kill(os.getpid(), 9)", "ended"),
        ("os.close(fd); time.sleep(60)", "ended"),
        ("os.write(fd, b'\\xff' * 100); time.sleep(60)", "not ready"),
        ("os.write(fd, struct.pack('>I', 3) + b'abc'); time.sleep(60)", "ended"),
    ],
    ids=["hangs", "exits", "is killed", "closes", "babbles", "lies"],
)
async def test_a_failed_start_ends_in_time_and_leaves_nothing(interpreter, body, reason):
    policy = SandboxPolicy(level="plain")
    ready_timeout = 0.5 if reason == "not ready" else 60
    config = SessionConfig(python=interpreter(body), ready_timeout=ready_timeout, sandbox=policy)
    session = WorkerSession(config)
    with pytest.raises(StartFailed, match=reason):
        await session.start()
    assert session.state is SessionState.ERROR
    await session.terminate()


async def test_an_interpreter_that_does_not_exist_is_a_clear_failure():
    session = WorkerSession(SessionConfig(python="/no/such/python"))
    with pytest.raises(StartFailed, match="no/such/python"):
        await session.start()
    await session.terminate()


async def test_a_missing_working_directory_is_named(start):
    with pytest.raises(StartFailed, match="/no/such/directory"):
        await start(workdir="/no/such/directory")


@pytest.mark.parametrize("access", ["readable", "writable"])
@pytest.mark.parametrize("path", ["relative", ""])
def test_a_path_that_is_not_absolute_is_refused_before_anything_is_started(path, access):
    with pytest.raises(InvalidInput, match=access):
        SandboxPolicy(**{access: (path,)})


@pytest.mark.parametrize("access", ["readable", "writable"])
@pytest.mark.parametrize("path", ["/no/such/path", "/tmp/a\0b"])
async def test_a_missing_path_is_an_error_and_not_a_weaker_sandbox(path, access):
    session = WorkerSession(SessionConfig(sandbox=SandboxPolicy(**{access: (path,)})))
    with pytest.raises(StartFailed, match=access):
        await session.start()
    await session.terminate()


@pytest.mark.parametrize(
    "environment", [{"": "x"}, {"A=B": "x"}, {"A": "x\0y"}, {"A": 5}, {5: "A"}, {"A": "\udcff"}], ids=ascii
)
def test_an_invalid_environment_is_refused_before_anything_is_started(environment):
    with pytest.raises(InvalidInput, match="environment"):
        SessionConfig(environment=environment)


async def test_warm_up_code_that_fails_fails_the_start(start):
    with pytest.raises(StartFailed, match="ZeroDivisionError"):
        await start(warmup_code="1 / 0")


async def test_warm_up_code_that_dies_fails_the_start(start):
    with pytest.raises(StartFailed):
        await start(warmup_code="import os; os._exit(1)")


async def test_a_preload_that_breaks_the_fork_server_falls_back_to_spawn(tmp_path):
    (tmp_path / "fatal.py").write_text("import os; os._exit(1)")
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')")
    tmp_path.chmod(0o755)
    policy = SandboxPolicy(level="plain")
    config = SessionConfig(preload=("fatal",), import_path=(str(tmp_path),), sandbox=policy)
    async with WorkerSession(config) as session:
        assert (await session.run("1")).value == 1
        assert session.info.metadata["mode"] == "spawn"
        assert "the fork server ended" in session.info.metadata["start_notes"][0]
    async with SessionPool(PoolConfig(session=config, min_idle=1)) as pool, pool.acquire(timeout=60) as session:
        assert (await session.run("1")).value == 1
    config = SessionConfig(preload=("broken", "json", "decimal"), import_path=(str(tmp_path),), sandbox=policy)
    async with WorkerSession(config) as session:
        assert "RuntimeError" in session.info.metadata["preload_failed"]["broken"]
        assert session.info.metadata["preloaded"]["decimal"] > 0
        assert (await session.run("import sys; 'decimal' in sys.modules")).value is True


def is_fork_server(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().split(b"\0")[1:4] == [b"-I", b"-X", b"utf8"]


async def test_sessions_end_with_their_fork_server_and_new_ones_get_a_new_one(start, config):
    if config.mode == "spawn":
        pytest.skip("in spawn mode every session has its own server")
    session = await start()
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = [int(word) for word in file.read().split()]
    servers = [pid for pid in children if is_fork_server(pid)]  # not the databases and commands of other tests
    assert servers
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    await wait_until(lambda: session.state is SessionState.ERROR)
    again = await start()
    assert (await again.run("1")).value == 1


HOST = """
import asyncio, sys
sys.path.insert(0, {src!r})
from standfast.workers import WorkerSession, SessionConfig, SandboxPolicy

async def main():
    config = SessionConfig(sandbox=SandboxPolicy(level={level!r}, require={level!r}), python={python!r})
    session = WorkerSession(config)
    await session.start()
    await session.run("import subprocess; subprocess.Popen(['sleep', '987654'])")
    print("up", flush=True)
    await session.run("while True: pass", timeout=None)

asyncio.run(main())
"""


@pytest.mark.parametrize("level", ["plain", "locked", "namespaces"])
def test_a_killed_host_leaves_no_worker(level, readable_python):
    src = os.path.join(os.path.dirname(__file__), "..", "..", "src")
    program = HOST.format(src=os.path.abspath(src), level=level, python=readable_python)
    host = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert host.stdout.readline() == b"up\n"
    processes = list_descendants(host.pid)
    assert len(processes) >= 4
    host.kill()
    host.wait()
    host.stdout.close()
    deadline = time.monotonic() + 60
    while any(is_alive(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [pid for pid in processes if is_alive(pid)] == []


def list_descendants(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(word) for word in file.read().split()]
    return children + [deeper for child in children for deeper in list_descendants(child)]


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


WRONG_REPLY = """
import sys
from standfast.workers.child.loop import WorkerLoop
from standfast.workers.wire import messages as m
frame = sys._getframe()
while not isinstance(frame.f_locals.get("self"), WorkerLoop):
    frame = frame.f_back
worker = frame.f_locals["self"]
worker._handlers[m.NamespaceMessage] = lambda asked: worker.channel.send({reply})
"""


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("m.AckMessage(of=asked.id)", "with a AckMessage"),
        ("m.HeartbeatMessage(of=asked.id)", "with a HeartbeatMessage"),
        ("m.ErrorMessage(exception_type='X', execution_id=asked.id, state='lost')", "X"),
    ],
)
async def test_a_reply_of_the_wrong_kind_is_an_error_of_the_request(session, reply, message):
    assert (await session.run(WRONG_REPLY.format(reply=reply))).ok
    with pytest.raises(WorkerRequestFailed, match=message):
        await session.namespace()
    assert (await session.run("1")).value == 1
