"""Signals that user code in a worker handles, and those that standfast sends to it."""

import asyncio
import textwrap

import pytest

from standfast.workers import DisplayMessage, ExecuteMessage, InputMessage, InterruptMessage, OutputMessage

# The behaviour is that of the worker's own code, however it was started.
ONE_CONFIG = pytest.mark.parametrize("config", ["fork-namespaces"], indirect=True)

INTERRUPTED_CODE = """
import signal, sys
class Tick(Exception): pass
inside = False
def ring(*_):
    global inside
    if inside:
        inside = False
        raise Tick
signal.signal(signal.SIGALRM, ring)
seen = at = 0
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.00037)
while seen < 100:
    try:
        inside = True
        while True:
            at += 1
            STEP
    except Tick:
        seen += 1
signal.setitimer(signal.ITIMER_REAL, 0)
at
"""


def interrupt_often(step: str) -> str:
    """Return code that repeats a step while a signal handler interrupts it with exceptions."""
    return INTERRUPTED_CODE.replace("STEP", step)


@ONE_CONFIG
async def test_a_handler_that_raises_leaves_no_partial_display(session):
    result = await session.run(interrupt_often("display(at)"), timeout=60)
    assert result.error is None, result.error.traceback
    shown = [int(display.data["text/plain"]) for display in result.displays]
    assert shown == sorted(set(shown))
    assert result.value - len(shown) <= 100
    assert session.info.telemetry["violations"] == 0
    assert (await session.run("1 + 1")).value == 2


@pytest.mark.parametrize(
    "step",
    [
        "sys.stdout.write(f'{at}\\n')",
        "sys.stdout.write(f'{at}\\n'); sys.stdout.flush()",
        "sys.stdout.buffer.write(b'%d\\n' % at)",
        "sys.stdout.write('.' * 9000 + f'\\n{at}\\n')",
    ],
)
@ONE_CONFIG
async def test_a_handler_that_raises_neither_loses_nor_repeats_lines(start, step):
    session = await start(output_limit=None)
    result = await session.run(interrupt_often(step), timeout=60)
    assert result.error is None, result.error.traceback
    lines = [int(line) for line in result.stdout.split() if not line.startswith(".")]
    assert lines == sorted(set(lines))
    assert result.value - len(lines) <= 100
    assert (await session.run("1 + 1")).value == 2


@ONE_CONFIG
async def test_interrupts_neither_lose_nor_repeat_lines(start):
    session = await start(output_limit=None)
    code = textwrap.dedent("""
        import sys
        at = seen = 0
        while seen < 40:
            try:
                display(seen)
                while True:
                    at += 1
                    sys.stdout.write(f"{at}\\n")
            except KeyboardInterrupt:
                seen += 1
        at
    """)
    text = ""
    async for item in session.execute(ExecuteMessage(code=code), timeout=60):
        if isinstance(item, DisplayMessage):
            await session.send_message(InterruptMessage())
        elif isinstance(item, OutputMessage):
            text += item.data
    lines = [int(line) for line in text.split()]
    assert lines == sorted(set(lines))
    assert item.value - len(lines) <= 40


async def test_a_handler_may_end_an_input_request(session):
    code = textwrap.dedent("""
        import signal
        def late(*_): raise TimeoutError("no answer")
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        try:
            answer = input("quick: ")
        except TimeoutError as problem:
            answer = str(problem)
        answer, input("slow: ")
    """)
    async with asyncio.timeout(60):
        async for item in session.execute(ExecuteMessage(code=code)):
            if isinstance(item, InputMessage) and item.prompt == "slow: ":
                assert await session.input_response(item.id, "here")
    assert list(item.value) == ["no answer", "here"]


async def test_an_exception_of_a_handler_between_executions_is_printed(session):
    await session.run(
        "import signal\n"
        "calls = 0\n"
        "def on_alarm(*_):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    raise LookupError('alarm')\n"
        "signal.signal(signal.SIGALRM, on_alarm)\n"
    )
    # On a slow machine, the signal may come before the execution has ended.
    for delay in (0.01, 0.3, 10):
        ended = await session.run(f"calls = 0; signal.setitimer(signal.ITIMER_REAL, {delay})")
        if ended.ok:
            break
    shown = ended.stderr
    async with asyncio.timeout(60):
        while "LookupError: alarm" not in shown:
            shown += (await session.receive_message(OutputMessage)).data
    assert "child" not in shown, "none of our frames"
    assert (await session.run("calls")).value == 1


async def test_getsignal_returns_the_handler_that_the_code_set(session):
    code = textwrap.dedent("""
        import signal
        def ring(*_): pass
        first = signal.signal(signal.SIGALRM, ring)
        second = signal.getsignal(signal.SIGALRM)
        third = signal.signal(signal.SIGALRM, first)
        first is signal.SIG_DFL, second is ring, third is ring, signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    """)
    assert list((await session.run(code)).value) == [True] * 4


async def test_a_handler_that_does_not_return_can_be_interrupted(session):
    code = (
        "import signal\n"
        "def ring(*_):\n"
        "    print('in the handler', flush=True)\n"
        "    while True: pass\n"
        "signal.signal(signal.SIGALRM, ring)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.01)\n"
        "while True: STEP\n"
    )
    for step in ("pass", "display(1)", "print(1)"):
        async for item in session.execute(ExecuteMessage(code=code.replace("STEP", step)), timeout=60):
            if isinstance(item, OutputMessage) and "in the handler" in item.data:
                stopped = asyncio.ensure_future(session.interrupt())
        assert (await stopped).state == "preserved"


async def test_an_exception_of_a_handler_in_a_repr_ends_the_code(session):
    code = textwrap.dedent("""
        import signal
        class Slow:
            def __repr__(self):
                while True: pass
        def late(*_): raise TimeoutError("enough")
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        display(Slow())
    """)
    assert (await session.run(code, timeout=60)).error.exception_type == "TimeoutError"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("libc.usleep(100_000)", 0),
        ("libc.nanosleep((ctypes.c_long * 2)(0, 100_000_000), None)", 0),
        ("libc.poll(None, 0, 100)", 0),
        ("libc.sleep(1)", 0),
    ],
)
@ONE_CONFIG
async def test_sleeping_c_code_is_not_interrupted_by_signals_of_ours(session, call, expected):
    code = f"import ctypes, time; libc = ctypes.CDLL(None); began = time.monotonic(); {call}, time.monotonic() - began"
    returned, took = (await session.run(code)).value
    assert (returned, took > 0.09) == (expected, True)


LOSE_CHILDREN = """
import ctypes, functools, multiprocessing, os, signal, subprocess
class Tick(Exception): pass
is_armed = True
def ring(*_):
    if is_armed:
        raise Tick
signal.signal(signal.SIGALRM, ring)
# No Python code runs between the signal and the end of the call that forks: the handler is called right behind it.
send = functools.partial(ctypes.CDLL(None).kill, os.getpid(), int(signal.SIGALRM))
os.register_at_fork(after_in_parent=send)
for _ in range(5):
    try:
        START
    except Tick:
        pass
"""
LIST_CHILDREN = "open(f'/proc/self/task/{os.getpid()}/children').read().split()"


@ONE_CONFIG
@pytest.mark.parametrize(
    "start_process",
    [
        "subprocess.Popen(['true'], preexec_fn=bool)",
        "multiprocessing.get_context('fork').Process(target=int).start()",
        "os.fork() or os._exit(0)",
        "os.spawnlp(os.P_NOWAIT, 'true', 'true')",
    ],
)
async def test_a_child_whose_pid_was_lost_to_a_handler_is_reaped(session, start_process):
    result = await session.run(LOSE_CHILDREN.replace("START", start_process))
    assert result.error is None, result.error.traceback
    # Lost children that have ended are reaped when the next execution ends.
    await session.run(f"for child in {LIST_CHILDREN}: os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOWAIT)")
    assert (await session.run(LIST_CHILDREN)).value == []


@ONE_CONFIG
async def test_a_child_that_the_code_knows_is_left_to_it_after_an_interrupt(session):
    code = """
        import os, subprocess, time
        pid = os.fork()
        if pid == 0:
            os._exit(7)
        process = subprocess.Popen(["sh", "-c", "exit 8"])
        for child in (pid, process.pid):
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        print("started")
        time.sleep(60)
    """
    async for item in session.execute(ExecuteMessage(code=textwrap.dedent(code)), timeout=60):
        if isinstance(item, OutputMessage):
            await session.send_message(InterruptMessage())
    assert item.interrupted
    result = await session.run("os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), process.wait()")
    assert result.value == [7, 8]
