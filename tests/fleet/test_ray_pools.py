"""The pool over Ray, and its sessions, with a cluster of two nodes."""

import asyncio
import contextlib
import inspect

import pytest

from factories.fleet import LEAKS, NEEDS_RAY
from factories.server import open_server
from factories.workers import collect_messages, start_code
from standfast.base.errors import Closed, InvalidInput, NotFound
from standfast.fleet import RayPool, RemoteWorkerSession
from standfast.fleet._node.wire import RemoteError
from standfast.workers import (
    CaptureFailed,
    ErrorMessage,
    ExecuteMessage,
    InputMessage,
    OutputMessage,
    PoolConfig,
    PoolExhausted,
    PythonSessions,
    ResultMessage,
    SandboxPolicy,
    SessionConfig,
    SessionPool,
    SessionState,
    WorkerDied,
    WorkerError,
    WorkerRequestFailed,
    WorkerSession,
    WorkspaceRefused,
    python_function,
)

NODES = 1
pytestmark = [NEEDS_RAY, LEAKS]
CONFIG = PoolConfig(
    session=SessionConfig(sandbox=SandboxPolicy(require="namespaces")), min_idle=1, max_sessions=3, drain_timeout=1.0
)


@pytest.fixture
async def pool(make_pool):
    return await make_pool(CONFIG)


@pytest.fixture
async def session(pool):
    async with pool.acquire(60) as leased:
        yield leased


@pytest.mark.parametrize(("remote", "local"), [(RayPool, SessionPool), (RemoteWorkerSession, WorkerSession)])
def test_it_has_each_public_method_of_the_local_one(remote, local):
    inherited = {"remove_message_interceptor"} if local is WorkerSession else set()
    inherited |= {"__aexit__"}
    for name, member in vars(local).items():
        if not name.startswith("_") and name not in inherited:
            assert name in vars(remote), f"{name} would use the parts of a local one"
            if inspect.isfunction(member):
                own = list(inspect.signature(vars(remote)[name]).parameters)
                assert own == list(inspect.signature(member).parameters), name


async def test_code_runs_and_its_variables_stay(session):
    result = await session.run("x = 20\nprint('hello')\nx + 1")
    assert (result.stdout, result.value, result.ok) == ("hello\n", 21, True)
    assert (await session.run("x")).value == 20
    assert [entry.name for entry in await session.namespace()] == ["x"]
    assert session.info.metadata["sandbox"] == "namespaces"
    assert session.info.execution_count == 2
    failed = await session.run("1 / 0")
    assert failed.error.exception_type == "ZeroDivisionError"


async def test_messages_stream_in_order(session):
    messages = await collect_messages(session, "for n in range(300): print(n)\n'end'")
    text = "".join(one.data for one in messages if isinstance(one, OutputMessage))
    assert text == "".join(f"{n}\n" for n in range(300))
    assert isinstance(messages[-1], ResultMessage)
    assert messages[-1].value == "end"


async def test_input_is_answered_while_the_code_runs(session):
    answers = []
    async for message in session.execute(ExecuteMessage(code="name = input('who? ')\nname.upper()")):
        if isinstance(message, InputMessage):
            assert message.prompt == "who? "
            assert await session.input_response(message.id, "ann")
        answers.append(message)
    assert answers[-1].value == "ANN"


async def test_an_interrupt_overtakes_a_flood_of_output_that_nobody_reads(session):
    await session.run("kept = 1")
    stream = session.execute(ExecuteMessage(code="while True: print('flood' * 100)"), timeout=60)
    async for message in stream:
        if isinstance(message, OutputMessage):
            break
    outcome = await asyncio.wait_for(session.interrupt(), 30)
    assert (outcome.stopped, outcome.state) == (True, "preserved")
    await stream.aclose()
    assert (await session.run("kept")).value == 1


async def test_the_worker_waits_for_a_reader_who_does_not_read(session):
    """What is on its way is bounded: by the worker's buffer, and by two batches."""
    code = (
        "import os\nwith open('n', 'w') as f:\n for n in range(150):\n  print('x' * 100_000)\n  f.write('.'); f.flush()"
    )
    stream = session.execute(ExecuteMessage(code=code), timeout=60)
    async for message in stream:
        if isinstance(message, OutputMessage):
            break
    before = -1
    while (now := len(await session.files.read("n"))) != before:
        before = now
        await session.heartbeat()
    assert before < 100
    seen = len(message.data) + sum([len(one.data) async for one in stream if isinstance(one, OutputMessage)])
    assert seen == 150 * 100_001


async def test_a_caller_who_is_cancelled_stops_its_code(session):
    task = asyncio.create_task(session.run("kept = 2\nimport time\nopen('started', 'w').close()\ntime.sleep(600)"))
    while not [file for file in await session.files.list() if file.path == "started"]:
        await session.heartbeat()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await session.run("kept", timeout=60)).value == 2


async def test_a_timeout_stops_the_code_and_keeps_the_variables(session):
    result = await session.run("kept = 3\nwhile True: pass", timeout=0.3)
    assert (result.timed_out, result.state) == (True, "preserved")
    assert (await session.run("kept")).value == 3


async def test_snapshots_forks_checkpoints_and_files(session):
    await session.run("data = [1]")
    point = await session.snapshot()
    await session.run("data.append(2)")
    twin = await session.fork()
    checkpoint = await session.checkpoint()
    await session.rollback(point)
    assert (await session.run("data")).value == [1]
    assert (await twin.run("data")).value == [1, 2]
    await twin.terminate()
    await session.drop(point)
    assert (await session.restore(checkpoint)).kept == ("data",)
    assert (await session.run("data")).value == [1, 2]
    await session.files.write("sub/a.txt", "text")
    assert await session.files.read("sub/a.txt") == b"text"
    assert [file.path for file in await session.files.list()] == ["sub/a.txt"]
    await session.files.remove("sub/a.txt")
    assert await session.files.list() == []
    assert (await session.complete("dat")) == ("data",)
    assert (await session.measure()).memory == session.usage().memory > 0


async def test_a_workspace_is_captured_on_one_node_and_restored_on_another(pool):
    async with pool.acquire(60) as here, pool.acquire(60) as there:
        assert here.node_id != there.node_id, "the second session is on the node with more room"
        await here.run("import random\nbig = bytes(3_000_000)\nopen('f.txt', 'w').write('kept')\nn = 7")
        async with await here.capture() as capture:
            chunks = {digest: data async for digest, data in capture}
        report = await there.restore_workspace(capture.manifest, lambda digest: asyncio.sleep(0, chunks[digest]))
        assert set(report.kept) >= {"big", "n"}
        assert (await there.run("n, len(big), open('f.txt').read()")).value == [7, 3_000_000, "kept"]
        with pytest.raises(WorkspaceRefused):
            await there.restore_workspace(capture.manifest, lambda digest: asyncio.sleep(0, b"wrong"))
        with pytest.raises(CaptureFailed):
            async with await here.capture(max_bytes=1000) as small:
                [one async for one in small]


async def test_a_restore_on_another_node_leaves_of_a_prepared_worker_what_no_capture_keeps(pool):
    prepare = "lock = __import__('threading').Lock(); unused = 1; _ = open('unused.txt', 'w').write('1')"
    async with pool.acquire(60) as here, pool.acquire(60) as there:
        await here.run(f"{prepare}; del unused; __import__('os').remove('unused.txt'); n = 7")
        async with await here.capture() as capture:
            chunks = {digest: data async for digest, data in capture}
        await there.restore_workspace(
            capture.manifest, lambda digest: asyncio.sleep(0, chunks[digest]), prepare=lambda: there.run(prepare)
        )
        seen = "n, lock.locked(), 'unused' in globals(), __import__('os').listdir('.')"
        assert (await there.run(seen)).value == [7, False, False, []]


async def test_errors_have_their_class_and_their_fields(session):
    with pytest.raises(WorkerRequestFailed) as refused:
        await session.restore(b"no checkpoint")
    assert refused.value.kind
    with pytest.raises(NotFound):
        await session.files.read("missing.txt")
    with pytest.raises(InvalidInput):
        await session.files.read("../../etc/passwd")


async def test_the_end_of_a_worker_is_told_with_its_cause(session):
    result = await session.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert result.state == "lost"
    assert not session.is_alive
    await session.restart()
    assert session.state in (SessionState.READY, SessionState.IDLE)
    assert (await session.run("'again'")).value == "again"


async def test_a_pool_is_full_when_all_nodes_are(pool):
    sessions = [await pool.lease(60) for _ in range(6)]
    assert {session.node_id for session in sessions} == {report.node_id for report in pool.list_reports()}
    assert pool.is_full
    with pytest.raises(PoolExhausted):
        await pool.lease(0.2)
    waiting = asyncio.create_task(pool.lease(60))
    pool.release(sessions[0])
    sessions[0] = await waiting
    with pytest.raises(WorkerError):
        pool.release(WorkerSession())
    for session in sessions:
        pool.release(session)
    with pytest.raises(Closed):
        await sessions[0].run("1")


async def test_a_node_that_is_drained_gives_its_conversations_to_another(make_pool):
    pool = await make_pool(PoolConfig(session=CONFIG.session, min_idle=0, max_sessions=4, drain_timeout=1.0))
    async with pool.acquire(60) as one, pool.acquire(60) as two:
        for number, session in enumerate((one, two)):
            await session.run(f"number = {number}; lock = __import__('threading').Lock()")
        left = one.node_id
        reports = await pool.drain_node(left)
        assert [list(report.lost) for report in reports.values()] == [["lock"]]
        assert one.node_id == two.node_id != left
        assert [(await session.run("number")).value for session in (one, two)] == [0, 1]
        async with pool.acquire(60) as third:
            assert third.node_id != left


async def test_output_that_streams_while_its_node_is_drained_is_complete(make_pool):
    pool = await make_pool(PoolConfig(session=CONFIG.session, min_idle=0, max_sessions=5, drain_timeout=1.0))
    async with pool.acquire(60) as session:
        left = session.node_id
        stream = session.execute(ExecuteMessage(code="for n in range(3000): print(f'{n:01000}')"), timeout=120)
        messages = [await anext(stream)]  # and the rest below: the drain begins between two
        draining = asyncio.create_task(pool.drain_node(left))
        assert await session.files.list() == [], "other calls do not wait for the end of the drain"
        messages += [message async for message in stream]
        text = "".join(one.data for one in messages if isinstance(one, OutputMessage))
        assert text == "".join(f"{n:01000}\n" for n in range(3000))
        assert isinstance(messages[-1], ResultMessage)
        await draining
        assert session.node_id != left


async def test_a_session_that_cannot_be_moved_stays_and_the_others_are_moved(make_pool):
    pool = await make_pool(PoolConfig(session=CONFIG.session, min_idle=0, max_sessions=8, drain_timeout=1.0))
    sessions = [await pool.lease(60) for _ in range(4)]
    left = sessions[0].node_id
    [dead, alive] = [one for one in sessions if one.node_id == left]
    await dead.run("import os; os._exit(3)")
    await alive.run("kept = 1")
    with pytest.raises((CaptureFailed, WorkerDied, Closed)):
        await pool.drain_node(left)
    assert (dead.node_id, alive.node_id != left) == (left, True)
    assert (await alive.run("kept")).value == 1
    for session in sessions:
        pool.release(session)
    async with asyncio.timeout(60):
        while any(report.leased for report in pool.list_reports()):
            await pool.refresh()


async def test_a_conversation_whose_session_was_given_up_by_its_node_continues_in_another(make_pool):
    """The pool was paused, or cut off, for longer than the node waits for it; here the node is told to forget it."""
    pool = await make_pool(PoolConfig(session=CONFIG.session, min_idle=0, max_sessions=3, drain_timeout=1.0))
    sessions = PythonSessions.for_pool(pool)
    await sessions.run("x = 1", key="ann")
    [session] = pool._sessions.values()
    await session.link.control("", "leave", None, type(None))
    lost = await sessions.run("x", key="ann")
    assert (lost.result.state, lost.result.error.cause) == ("lost", "node-lost")
    assert not session.is_alive
    again = await sessions.run("'x' in dir()", key="ann")
    assert (again.result.value, again.carried_over) == (False, "nothing")
    assert len(pool.list_sessions()) == 1


async def test_a_lease_that_is_cancelled_or_times_out_leaves_nothing_on_the_node(make_pool):
    pool = await make_pool(PoolConfig(session=CONFIG.session, min_idle=0, max_sessions=3, drain_timeout=1.0))
    for milliseconds in range(0, 60, 3):
        with contextlib.suppress(PoolExhausted):
            pool.release(await pool.lease(milliseconds / 1000))
    async with asyncio.timeout(60):
        while any(report.leased for report in pool.list_reports()):
            await pool.refresh()


async def test_the_python_tool_and_the_python_function_take_the_pool(pool):
    run_python = python_function(pool, conversation="ann")
    assert await run_python("x = 5") == "[no output]"
    assert await run_python("x + 1") == "6"
    sessions = PythonSessions.for_pool(pool)
    outputs = await asyncio.gather(*(sessions.run(f"{n} * 2", key=f"c{n}") for n in range(12)))
    assert [one.result.value for one in outputs] == [n * 2 for n in range(12)]


async def test_a_server_shows_the_workers_of_each_node(pool):
    async with pool.acquire(60) as session, open_server(pools=[pool]) as server:
        root = server.sign_in("root")
        metrics = (await root.get("/metrics")).text.splitlines()
        [fleet] = (await root.get("/fleet")).json()["pools"]
        for report in pool.list_reports():
            here = int(report.node_id == session.node_id)
            assert f'standfast_node_sessions{{node="{report.node_id}"}} {here:.1f}' in metrics
            assert f'standfast_node_capacity{{node="{report.node_id}"}} 3.0' in metrics
            node = fleet["nodes"][report.node_id]
            assert (node["leased"], node["capacity"]) == (here, 3)


async def test_a_pool_finds_only_nodes_with_its_labels(make_pool, joined):
    pool = await make_pool(CONFIG, nodes=0, labels={"standfast/preload": "numpy"})
    assert pool.list_reports() == []
    with pytest.raises(PoolExhausted):
        await pool.lease(0.2)


async def test_a_message_that_is_no_message_ends_no_actor(pool):
    """Garbage instead of a request is refused, and the node goes on."""
    async with pool.acquire(60) as session:
        link = session.link
        with pytest.raises(RemoteError):
            await link.call(session.session_id, "run", b"\xc1", type(None))
        assert (await session.run("2 + 2")).value == 4
        last = [message async for message in session.execute(ExecuteMessage(code="1/0"))][-1]
        assert isinstance(last, ErrorMessage)


async def test_code_that_is_running_is_found_by_start_code(session):
    task = await start_code(session, "import time; time.sleep(600)")
    assert (await session.interrupt()).stopped
    assert (await task)[-1].interrupted
