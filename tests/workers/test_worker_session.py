"""The life cycle of a session: interrupts, cancellation, exits, restart and shutdown."""

import asyncio
import os
import signal

import pytest

from factories.workers import list_child_pids, start_code, wait_until
from standfast.base.errors import Closed
from standfast.workers import (
    AckMessage,
    DisplayMessage,
    ErrorMessage,
    ExecuteMessage,
    OutputMessage,
    SandboxPolicy,
    SessionState,
    WorkerDied,
    WorkerSession,
    close_idle_fork_servers,
)

STUBBORN = "while True:\n    try:\n        GO\n        while True: pass\n    except BaseException: pass"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "input('never answered')",
        "import subprocess; subprocess.run(['sleep', '60'])",
        "import asyncio; await asyncio.sleep(60)",
        "import threading; threading.Event().wait(60)",
        "while True: print('flood' * 20)",
    ],
    ids=["loop", "sleep", "input", "subprocess", "await", "wait", "flood"],
)
async def test_an_interrupt_stops_it_and_keeps_the_variables(session, code):
    await session.run("kept = 1")
    task = await start_code(session, code)
    outcome = await session.interrupt()
    assert (outcome.stopped, outcome.state) == (True, "preserved")
    last = (await task)[-1]
    assert (last.exception_type, last.interrupted) == ("KeyboardInterrupt", True)
    assert "standfast/workers" not in last.traceback
    assert (await session.run("kept")).value == 1


async def test_no_interrupt_is_missed_by_code_that_just_enters_a_system_call(start):
    session = await start(grace=600)
    for _ in range(300):
        task = await start_code(session, "import time; time.sleep(3600)")
        await asyncio.wait_for(session.interrupt(), 120)
        await task


async def test_an_interrupt_reaches_the_processes_the_code_started(session):
    await session.run("import subprocess; p = subprocess.Popen(['sleep', '60'])")
    task = await start_code(session, "import time; time.sleep(60)")
    await session.interrupt()
    await task
    assert (await session.run("p.wait(60)")).value == -signal.SIGINT


async def test_code_that_does_not_stop_is_killed_with_its_worker(start):
    session = await start(grace=0.1)
    code = STUBBORN
    task = await start_code(session, code)
    outcome = await session.interrupt()
    assert (outcome.stopped, outcome.state) == (True, "lost")
    last = (await task)[-1]
    assert (last.state, last.cause) == ("lost", "killed")
    assert session.state is SessionState.ERROR


async def test_a_forced_interrupt_brings_a_new_worker(start):
    session = await start(grace=0.1)
    await session.run("gone = 1")
    task = await start_code(
        session,
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\nGO\nwhile True: pass",
    )
    assert (await session.interrupt(force_restart=True)).state == "lost"
    await task
    assert (await session.run("'gone' in dir()")).value is False


async def test_interrupting_an_idle_session_does_nothing(session):
    outcome = await session.interrupt()
    assert (outcome.stopped, outcome.state) == (False, "preserved")
    assert (await session.run("1")).value == 1


async def test_cancelling_another_execution_does_nothing_to_this_one(session):
    task = await start_code(session, "import time; time.sleep(0.2); 'finished'")
    assert not (await session.cancel("no-such-execution")).stopped
    assert (await task)[-1].value == "finished"


async def test_a_cancel_right_after_its_execute_is_not_lost(session):
    for _ in range(20):
        message = ExecuteMessage(code="while True: pass")
        stream = session.execute(message)
        first = await anext(stream)
        assert isinstance(first, AckMessage)
        outcome = await session.cancel(message.id, grace=2)
        assert outcome.stopped
        assert outcome.state == "preserved"
        assert isinstance([m async for m in stream][-1], ErrorMessage)


async def test_a_cancel_that_arrives_before_its_code_starts_is_not_lost(start):
    session = await start(heartbeat_interval=None)
    for _ in range(10):
        message = ExecuteMessage(code="while True: pass")
        stream = session.execute(message)
        first = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        # Half of the grace period later, the interrupt would be sent again.
        async with asyncio.timeout(60):
            assert (await session.cancel(message.id, grace=400)).stopped
        assert isinstance(await first, AckMessage)
        assert (await anext(stream)).interrupted


async def test_interrupts_never_hit_the_next_execution(session):
    for n in range(50):
        task = asyncio.create_task(session.run("sum(range(20_000))"))
        await asyncio.sleep(0.0002 * (n % 7))
        await session.interrupt()
        await task
        assert (await session.run(f"{n}")).value == n


@pytest.mark.parametrize(
    ("code", "kind", "fact"),
    [
        ("import os; os._exit(3)", "exit", ("exit_code", 3)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal", ("signal", signal.SIGKILL)),
        ("import ctypes; ctypes.string_at(0)", "signal", ("signal", signal.SIGSEGV)),
    ],
    ids=["exit", "kill", "crash"],
)
async def test_a_dead_worker_ends_every_waiting_call_at_once_with_its_cause(session, code, kind, fact):
    first = asyncio.create_task(session.run(code, timeout=60))
    second = asyncio.create_task(session.run("'queued'", timeout=60))
    result = await first
    assert (result.state, result.error.cause) == ("lost", kind)
    with pytest.raises(WorkerDied) as caught:
        await second
    assert (caught.value.cause.kind, getattr(caught.value.cause, fact[0])) == (kind, fact[1])
    assert not session.is_alive


@pytest.mark.parametrize("config", ["fork-namespaces"], indirect=True)
async def test_a_worker_above_its_cpu_limit_ends_with_that_cause(start):
    session = await start(sandbox=SandboxPolicy(cpu_seconds=1))
    result = await session.run("while True: pass", timeout=60)
    assert (result.state, result.error.cause) == ("lost", "cpu-limit")


async def test_output_before_a_death_is_not_lost(session):
    result = await session.run("print('last words'); import os, sys; sys.stdout.flush(); os._exit(1)")
    assert result.stdout == "last words\n"


async def test_a_restart_brings_an_empty_namespace(session):
    await session.run("x = 1")
    await session.restart()
    assert (await session.run("'x' in dir()")).value is False
    assert session.state is SessionState.READY


async def test_a_restart_keeps_the_files_of_a_living_and_of_a_dead_worker(session):
    await session.files.write("from-host/a.txt", "A")
    made = await session.run(
        "import os, socket\n"
        "open('b', 'w').write('B'); os.chmod('b', 0o750)\n"
        "os.symlink('/etc/passwd', 'link'); os.mkfifo('fifo'); os.mkdir('empty')\n"
        "socket.socket(socket.AF_UNIX).bind('socket')"
    )
    assert made.error is None, made.error.traceback
    await session.restart()
    look = "import os; [sorted(os.listdir()), open('b').read(), oct(os.stat('b').st_mode)[-3:], os.readlink('link')]"
    expected = [["b", "empty", "from-host", "link"], "B", "750", "/etc/passwd"]
    assert (await session.run(look)).value == expected
    assert sorted(session.info.metadata["left_behind"]) == ["fifo", "socket"]
    await session.run("open('from-host/a.txt', 'a').write('!'); os._exit(1)")
    await session.restart()
    assert (await session.run(look)).value == expected
    assert await session.files.read("from-host/a.txt") == b"A!"


async def test_a_restart_is_not_prevented_by_directories_nested_too_deep(session):
    await session.run("import os\nfor _ in range(300): os.mkdir('d'); os.chdir('d')")
    await session.restart()
    assert session.info.metadata["left_behind"] == ("/".join("d" * 65),)
    assert (await session.run("import os; os.path.isdir('d/d/d')")).value is True


async def test_a_restart_revives_a_dead_session(session):
    await session.run("import os; os._exit(1)")
    assert session.state is SessionState.ERROR
    await session.restart()
    assert (await session.run("5")).value == 5


async def test_nothing_comes_back_from_terminated(session):
    await session.terminate()
    assert session.state is SessionState.TERMINATED
    for attempt in (session.start, session.restart, lambda: session.run("1"), session.namespace):
        with pytest.raises(Closed):
            await attempt()
    await session.shutdown()
    await session.terminate()
    assert session.state is SessionState.TERMINATED


async def test_terminating_ends_every_waiting_call(session):
    task = await start_code(session, "import time; time.sleep(60)")
    queued = asyncio.create_task(session.run("1"))
    listening = asyncio.create_task(session.receive_message())
    await asyncio.sleep(0)
    await session.terminate()
    last = (await asyncio.wait_for(task, 60))[-1]
    assert (last.state, last.cause) == ("lost", "shutdown")
    for waiting in (queued, listening):
        with pytest.raises((Closed, WorkerDied)):
            await asyncio.wait_for(waiting, 60)


async def test_a_shutdown_ends_an_input_request_with_eof(session):
    code = "try:\n    input('?')\nexcept EOFError:\n    print('eof')"
    task = await start_code(session, code)
    await session.shutdown()
    text = "".join(m.data for m in await task if isinstance(m, OutputMessage))
    assert text == "go\neof\n"


async def test_a_shutdown_is_bounded_even_if_the_code_will_not_stop(start):
    session = await start(grace=0.1, shutdown_timeout=1.0)
    task = await start_code(session, STUBBORN)
    await session.shutdown()
    assert session.state is SessionState.TERMINATED
    assert (await task)[-1].state == "lost"


async def test_many_tasks_may_shut_down_at_once(session):
    await asyncio.gather(*(session.shutdown() for _ in range(5)), *(session.terminate() for _ in range(5)))
    assert session.state is SessionState.TERMINATED


async def test_a_cancelled_start_leaves_nothing(config):
    session = WorkerSession(config)
    task = asyncio.create_task(session.start())
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await session.terminate()
    assert session.state is SessionState.TERMINATED


async def test_cancelled_starts_print_nothing(config, capfd):
    first = WorkerSession(config)
    await first.start()
    for _ in range(2):
        sessions = [WorkerSession(config) for _ in range(5)]
        starts = [asyncio.create_task(session.start()) for session in sessions]
        await asyncio.wait(starts, return_when=asyncio.FIRST_COMPLETED)
        for start in starts:
            start.cancel()
        await asyncio.gather(*starts, return_exceptions=True)
        await asyncio.gather(*(session.terminate() for session in sessions))
    assert (await first.run("1")).value == 1
    await first.shutdown()
    assert capfd.readouterr().err == ""


async def test_processes_started_by_user_code_do_not_outlive_the_session(session):
    code = "import subprocess; p = subprocess.Popen(['sleep', '300'], start_new_session=True); open('/proc/self/stat').close()"
    await session.run(code)
    supervisor = session._worker.resources.process_group.supervisor_pid
    with open(f"/proc/{supervisor}/task/{supervisor}/children") as file:
        worker = int(file.read().split()[0])
    with open(f"/proc/{worker}/task/{worker}/children") as file:
        sleeper = int(file.read().split()[0])
    await session.terminate()
    await wait_until(lambda: not os.path.exists(f"/proc/{sleeper}"))


async def test_an_interrupt_never_cuts_a_message_in_two(session):
    code = "class Big:\n    def _repr_html_(self): return 'x' * 900_000\nbig = Big(); x = 5\nwhile True: display(big)"
    for n in range(8):
        interrupting, displays = None, 0
        async for message in session.execute(ExecuteMessage(code=code), timeout=120):
            displays += isinstance(message, DisplayMessage)
            if interrupting is None and displays > n:
                interrupting = asyncio.create_task(session.interrupt())
        assert message.interrupted
        assert (await interrupting).state == "preserved"
        assert (await session.run("x", timeout=60)).value == 5


async def test_a_handler_that_is_not_python_does_not_keep_an_interrupt_away(session):
    task = await start_code(
        session,
        "import faulthandler, signal, time; faulthandler.register(signal.SIGINT, file=open('f', 'w')); time.sleep(60)",
    )
    assert (await session.interrupt()).state == "preserved"
    assert (await task)[-1].exception_type == "KeyboardInterrupt"


@pytest.mark.parametrize("end", ["terminate", "shutdown"])
@pytest.mark.parametrize("turns", [0, 1, 5, 40])
async def test_ending_a_session_that_starts_leaves_no_process(config, end, turns):
    before = list_child_pids()
    session = WorkerSession(config)
    starting = asyncio.create_task(session.start())
    for _ in range(turns):
        await asyncio.sleep(0.002)
    await getattr(session, end)()
    assert list_child_pids() == before
    assert session.state is SessionState.TERMINATED
    outcome = (await asyncio.gather(starting, return_exceptions=True))[0]
    assert outcome is None or isinstance(outcome, Closed)


async def test_a_caller_that_a_restart_interrupts_releases_the_lock(session):
    async def twice():
        await session.run("1")
        await session.run("2")

    callers = [asyncio.create_task(twice()), asyncio.create_task(session.run("import time; time.sleep(60)"))]
    await wait_until(lambda: session.info.execution_count == 2)
    await session.restart()
    refused, lost = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(refused, Closed)
    assert lost.state == "lost"
    assert (await session.run("3", timeout=60)).value == 3


@pytest.mark.parametrize("turns", [1, 2, 5])
async def test_a_cancelled_restart_leaves_nothing_open(config, turns):
    def count_open():
        close_idle_fork_servers()  # they may end at any moment
        return len(os.listdir("/proc/self/fd")), list_child_pids()

    before = count_open()
    session = WorkerSession(config)
    await session.start()
    restarting = asyncio.create_task(session.restart())
    for _ in range(turns):
        await asyncio.sleep(0)
    restarting.cancel()
    await asyncio.gather(restarting, return_exceptions=True)
    await session.terminate()
    assert count_open() == before


async def test_a_session_that_received_code_before_it_was_ready_is_busy(config):
    session = WorkerSession(config)
    starting = asyncio.create_task(session.start())
    early = None
    while early is None or early.done():
        if starting.done():
            starting.result()  # a start that failed would refuse code for ever
        early = asyncio.create_task(session.run("import time; time.sleep(60)", timeout=None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if early.done():
            assert isinstance(early.exception(), Closed | WorkerDied)
    await starting
    assert session.state is SessionState.BUSY
    assert (await session.interrupt()).state == "preserved"
    assert session.state is SessionState.READY
    assert (await early).error.interrupted
    await session.terminate()


async def test_a_queued_execution_can_be_cancelled_and_never_runs(start):
    session = await start(enable_metrics=True)
    ahead = asyncio.create_task(session.run("input()"))
    await wait_until(lambda: session.info.telemetry["open_input_requests"] == 1)
    message, behind = ExecuteMessage(code="ran = True"), asyncio.create_task(session.run("'behind'"))
    await wait_until(lambda: session.info.telemetry["waiting"] == 1)

    async def streamed():
        return [item async for item in session.execute(message)]

    waiting = asyncio.create_task(streamed())
    await wait_until(lambda: session.info.telemetry["waiting"] == 2)
    stopped = await session.cancel(message.id)
    assert (stopped.stopped, stopped.state) == (True, "preserved")
    (only,) = await waiting
    assert (only.execution_id, only.interrupted, only.state) == (message.id, True, "preserved")
    assert session.info.telemetry["waiting"] == 1
    assert session.info.metrics == {"cancel_event_triggers": 1, "executions_cancelled": 1}
    assert (await session.interrupt()).state == "preserved"
    assert (await ahead).error.exception_type == "KeyboardInterrupt"
    assert (await behind).value == "behind"
    assert (await session.run("'ran' in dir()")).value is False
    assert not (await session.cancel(message.id)).stopped


async def test_an_execution_cancelled_when_it_gets_the_lock_releases_it(session):
    ahead = asyncio.create_task(session.run("input()"))
    await wait_until(lambda: session.info.telemetry["open_input_requests"] == 1)
    message = ExecuteMessage(code="ran = True")
    waiting = asyncio.create_task(anext(session.execute(message)))
    await wait_until(lambda: session.info.telemetry["waiting"] == 1)
    cancels = []

    def between_the_turns(seen):
        if isinstance(seen, ErrorMessage):
            cancels.append(asyncio.ensure_future(session.cancel(message.id)))

    session.add_message_interceptor(between_the_turns)
    await asyncio.gather(session.interrupt(), ahead)
    assert (await waiting).interrupted
    assert (await cancels[0]).reason == "the execution had not started"
    assert (await session.run("'ran' in dir()")).value is False


async def test_a_caller_cancelled_in_the_queue_leaves_it(session):
    ahead = asyncio.create_task(session.run("input()"))
    await wait_until(lambda: session.info.telemetry["open_input_requests"] == 1)
    given_up, behind = (asyncio.create_task(session.run(code)) for code in ("ran = True", "'behind'"))
    await wait_until(lambda: session.info.telemetry["waiting"] == 2)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    await session.interrupt()
    await ahead
    assert (await behind).value == "behind"
    assert (await session.run("'ran' in dir()")).value is False


DEAF = {
    "shell": """import os; os.system('trap "" INT; sh -c "sleep 99 & sleep 99; wait"')""",
    "stubborn": """import os; os.system("trap '' INT TERM; while true; do sleep 1; done")""",
    "library": "import ctypes; ctypes.CDLL(None).system(b\"trap '' INT; sleep 99\")",
}


@pytest.mark.parametrize(("level", "kind"), [*(("namespaces", kind) for kind in DEAF), ("plain", "stubborn")])
async def test_processes_that_ignore_an_interrupt_are_killed_before_the_worker(sandboxed, kind, level):
    session = await sandboxed(sandbox=SandboxPolicy(level=level), grace=8.0)
    await session.run("kept = 1")
    task = await start_code(session, DEAF[kind])
    await wait_until(lambda: session.usage().processes >= 4)
    outcome = await session.interrupt()
    assert (outcome.stopped, outcome.state) == (True, "preserved")
    last = (await task)[-1]
    assert (last.exception_type, last.interrupted) == ("KeyboardInterrupt", True), last
    assert (await session.run("kept")).value == 1
