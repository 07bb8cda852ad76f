"""Running code, for every way of starting a worker."""

import asyncio

import pytest

from factories.worker_fixtures import in_one_mode
from factories.workers import collect_messages, wait_until
from standfast.workers import (
    AckMessage,
    DisplayMessage,
    ExecuteMessage,
    ExecutionTimeout,
    OutputMessage,
    ResultMessage,
    SessionState,
)


async def test_the_value_of_the_last_expression_comes_back(session):
    result = await session.run("x = 6 * 7\nx")
    assert (result.value, result.repr, result.ok, result.state) == (42, "42", True, "preserved")


async def test_variables_persist_between_executions(session):
    await session.run("def double(n): return 2 * n")
    assert (await session.run("double(21)")).value == 42


@in_one_mode
async def test_the_last_expression_is_evaluated_once(session):
    result = await session.run("seen = []\nseen.append(1) or len(seen)")
    assert result.value == 1
    assert (await session.run("len(seen)")).value == 1


@in_one_mode
async def test_a_cell_that_ends_in_a_statement_has_no_value(session):
    result = await session.run("y = 3")
    assert (result.value, result.repr) == (None, "")


async def test_the_acknowledgement_comes_first_and_the_result_last(session):
    messages = await collect_messages(session, "for i in range(200): print('line', i)\n'done'")
    assert isinstance(messages[0], AckMessage)
    assert isinstance(messages[-1], ResultMessage)
    assert all(isinstance(message, OutputMessage) for message in messages[1:-1])
    text = "".join(message.data for message in messages[1:-1])
    assert text == "".join(f"line {i}\n" for i in range(200))


async def test_output_of_subprocesses_threads_and_descriptors_is_captured(session):
    code = (
        "import os, subprocess, sys, threading\n"
        "print('python')\n"
        "os.write(1, b'descriptor\\n')\n"
        "subprocess.run(['echo', 'subprocess'])\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "os.system('echo shell >&2')\n"
        "sys.stdout.buffer.write(b'buffer\\n')"
    )
    result = await session.run(code)
    assert result.stdout.split() == ["python", "descriptor", "subprocess", "thread", "buffer"]
    assert result.stderr == "shell\n"


@pytest.mark.parametrize(
    "write",
    ["os.writev(1, [b'text'])", "open(1, 'w', closefd=False).write('text')", "os.write(os.dup(1), b'text')"],
)
async def test_output_that_bypasses_our_streams_belongs_to_its_code_and_arrives_at_once(session, write):
    # While C code runs, no signal handler does, and this code does not end.
    stream = session.execute(ExecuteMessage(code=f"import os; {write}; sum(range(10**13))"), timeout=None)
    acknowledgement, output = await anext(stream), await anext(stream)
    assert (type(acknowledgement), type(output)) == (AckMessage, OutputMessage)
    assert output.execution_id == acknowledgement.execution_id
    assert (session.info.telemetry["violations"], session.info.telemetry["general_queue"]) == (0, 0)
    await session.terminate()
    await stream.aclose()


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)", "input()"])
async def test_code_that_neither_writes_nor_ends_is_acknowledged(session, code):
    messages = session.execute(ExecuteMessage(code=code), timeout=60)
    assert isinstance(await anext(messages), AckMessage)
    await messages.aclose()


async def test_top_level_await_works_and_its_loop_lives_on(session):
    first = await session.run("import asyncio\nq = asyncio.Queue()\nawait q.put(5)\nawait asyncio.sleep(0, 'slept')")
    assert first.value == "slept"
    assert (await session.run("await q.get()")).value == 5


@in_one_mode
async def test_functions_see_names_assigned_in_the_same_cell(session):
    assert (await session.run("n = 3\ndef f(): return n\n[f() * i for i in range(2)]")).value == [0, 3]


async def test_a_traceback_shows_source_lines_and_none_of_our_frames(session):
    result = await session.run("def broken():\n    return 1 / 0\nbroken()")
    assert result.error.exception_type == "ZeroDivisionError"
    assert "return 1 / 0" in result.error.traceback
    assert "standfast" not in result.error.traceback
    assert (await session.run("1")).value == 1


@in_one_mode
@pytest.mark.parametrize("code", ["def", "await", "x = = 1", "\0"])
async def test_code_that_cannot_be_compiled_is_an_error_of_the_code(session, code):
    result = await session.run(code)
    assert result.error.exception_type in ("SyntaxError", "ValueError")
    assert (await session.run("2")).value == 2


@in_one_mode
@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import sys; sys.exit()", "raise KeyboardInterrupt"])
async def test_code_that_exits_does_not_end_the_session(session, code):
    assert (await session.run(code)).error is not None
    assert (await session.run("'still here'")).value == "still here"


@in_one_mode
async def test_rich_objects_come_back_as_mime_bundles(session):
    code = (
        "class Rich:\n"
        "    def _repr_html_(self): return '<b>hi</b>'\n"
        "    def _repr_png_(self): return b'\\x89PNG'\n"
        "    def _repr_svg_(self): raise RuntimeError\n"
        "display(Rich())\n"
        "Rich()"
    )
    messages = await collect_messages(session, code)
    shown = [message for message in messages if isinstance(message, DisplayMessage)]
    assert shown[0].data["text/html"] == "<b>hi</b>"
    assert messages[-1].data == {"text/html": "<b>hi</b>", "image/png": b"\x89PNG"}


ODD = {
    "an attribute": ("class Odd:\n    def __getattr__(self, name): raise RuntimeError", {}),
    "the class": ("class Odd:\n    __class__ = property(lambda self: 1 / 0)", {}),
    "a length": (
        "class Long:\n    def __len__(self): raise RuntimeError\nclass Odd:\n    def _repr_html_(self): return Long()",
        {},
    ),
    "leaving": ("class Odd:\n    def _repr_html_(self): raise SystemExit", {}),
    "garbage": ("from unittest.mock import MagicMock as Odd", {}),
    "a subclass of str": (
        "class Markup(str): pass\nclass Odd:\n    def _repr_html_(self): return Markup('<b>')",
        {"text/html": "<b>"},
    ),
    "a bundle": (
        "class Odd:\n    def _repr_mimebundle_(self, include, exclude): return {'text/html': '<i>'}, {'meta': 1}",
        {"text/html": "<i>"},
    ),
}


@in_one_mode
@pytest.mark.parametrize("trouble", ODD)
async def test_a_failing_representation_is_omitted_from_the_result(session, trouble):
    code, data = ODD[trouble]
    result = await session.run(f"{code}\ndisplay(Odd())\nOdd()")
    assert (result.error, result.data) == (None, data)
    assert "Odd" in result.repr or "Mock" in result.repr
    assert len(result.displays) == 1


async def test_a_repr_that_does_not_return_is_stopped_like_any_code(session):
    await session.run("class Odd:\n    def _repr_html_(self):\n        while True: pass\nx = 1")
    result = await session.run("Odd()", timeout=0.5)
    assert (result.timed_out, result.state) == (True, "preserved")
    assert (await session.run("x")).value == 1


@in_one_mode
async def test_values_that_are_not_plain_data_come_back_as_text_only(session):
    result = await session.run("class Odd:\n    def __repr__(self): raise ValueError\nOdd()")
    assert result.value is None
    assert result.repr == "<Odd whose repr raised ValueError>"
    assert (await session.run("2 ** 70")).repr == str(2**70)
    assert (await session.run("'\\ud800'")).ok


@in_one_mode
async def test_a_result_above_the_frame_limit_is_an_error_and_the_session_continues(start):
    session = await start(frame_limit=8192, repr_limit=1_000_000)
    result = await session.run("'x' * 100_000")
    assert result.error.exception_type == "FrameTooLarge"
    assert (await session.run("len('abc')")).value == 3


@in_one_mode
async def test_code_above_the_frame_limit_is_refused_before_it_is_sent(start):
    from standfast.workers import FrameTooLarge

    session = await start(frame_limit=8192)
    with pytest.raises(FrameTooLarge):
        await session.run("#" * 10_000)
    assert session.state is SessionState.READY
    assert (await session.run("1")).value == 1


@in_one_mode
async def test_concurrent_callers_are_served_in_their_order(session):
    await session.run("order = []")
    await asyncio.gather(*(session.run(f"order.append({n}); order[-1]") for n in range(20)))
    assert (await session.run("order")).value == list(range(20))


async def test_a_timeout_stops_the_code_and_keeps_the_variables(session):
    await session.run("kept = 'yes'")
    result = await session.run("while True: pass", timeout=0.1)
    assert (result.timed_out, result.state) == (True, "preserved")
    assert (await session.run("kept")).value == "yes"


async def test_a_timeout_raises_out_of_the_stream(session):
    with pytest.raises(ExecutionTimeout) as caught:
        await collect_messages(session, "import time; time.sleep(60)", timeout=0.1)
    assert caught.value.state == "preserved"


@pytest.mark.parametrize("config", ["fork-namespaces"], indirect=True)
async def test_each_execution_has_a_deadline_of_its_own(session):
    assert (await session.run("'quick'", timeout=60)).ok
    assert (await session.run("import time; time.sleep(1.2); 'slow'", timeout=60)).value == "slow"
    assert (await session.run("while True: pass", timeout=0.1)).timed_out
    assert (await session.run("time.sleep(0.4); 'endless'", timeout=None)).value == "endless"


async def test_leaving_the_stream_early_stops_the_code(session):
    stream = session.execute(ExecuteMessage(code="while True: print('x' * 100)"))
    async for message in stream:
        if isinstance(message, OutputMessage):
            break
    await stream.aclose()
    assert (await session.run("'free again'", timeout=60)).value == "free again"


async def test_output_above_the_cap_keeps_head_and_tail_and_counts_the_rest(start):
    session = await start(output_limit=1000)
    result = await session.run("for i in range(10_000): print(f'{i:09d}')")
    assert result.stdout.startswith("000000000\n")
    assert result.stdout.endswith("000009999\n")
    assert result.dropped == {"stdout": 100_000 - 1000}
    assert (await session.run("print('small')")).stdout == "small\n"


async def test_a_slow_reader_slows_the_worker_instead_of_filling_memory(start):
    session = await start(output_buffer=100_000, output_limit=None)
    total = deepest = 0
    async for message in session.execute(ExecuteMessage(code="for i in range(20_000): print('y' * 99)")):
        if isinstance(message, OutputMessage):
            total += len(message.data)
            deepest = max(deepest, session.info.telemetry["queued_bytes"])
            await asyncio.sleep(0.001)
    assert total == 2_000_000
    assert deepest < 100_000 + 2 * 65536 + 1


async def test_many_small_cells_are_not_a_burst_of_lines(session):
    await session.run("import sys")
    seen = [(await session.run("sys.stdout.line_buffering")).value for _ in range(300)]
    assert all(seen)


async def test_output_after_the_result_reaches_the_general_queue(session):
    code = "import threading, time\nthreading.Timer(0.05, lambda: print('late')).start()"
    await session.run(code)
    late = await session.receive_message(OutputMessage, timeout=60)
    assert (late.data, late.execution_id) == ("late\n", "")


async def test_user_code_that_forks_and_returns_does_not_disturb_the_session(session):
    result = await session.run("import os\npid = os.fork()\npid > 0")
    assert result.value is True
    assert (await session.run("1 + 1")).value == 2
    assert session.info.telemetry["violations"] == 0


async def test_text_in_odd_encodings_survives(session):
    result = await session.run("print('grüße ☃ 𝄞'); import os; _ = os.write(1, b'\\xff\\xfe')")
    assert result.stdout == "grüße ☃ 𝄞\n��"


async def test_usage_is_reported_per_execution(session):
    result = await session.run("sum(i * i for i in range(300_000))")
    assert result.usage.cpu > 0.005
    assert result.usage.peak_rss > 1_000_000
    assert result.execution_time > 0.005


async def test_a_timeout_stops_the_code_even_if_its_messages_are_not_read(session):
    await session.run("x = 1")
    stream = session.execute(ExecuteMessage(code="while True: print('x' * 1000)"), timeout=0.3)
    assert isinstance(await anext(stream), AckMessage)
    await wait_until(lambda: session.state is SessionState.READY)
    with pytest.raises(ExecutionTimeout, match="variables preserved"):
        _ = [message async for message in stream]
    assert (await session.run("x")).value == 1


BIG = "class Big:\n    def _repr_html_(self): return 'x' * 900_000\nbig = Big()\n"


async def test_a_slow_reader_slows_displays_too_and_requests_are_answered(session):
    stream = session.execute(ExecuteMessage(code=BIG + "for _ in range(100): display(big)"), timeout=60)
    await anext(stream)
    await wait_until(lambda: session.info.telemetry["queued_bytes"] > 1 << 20)
    assert "big" in {entry.name for entry in await session.namespace()}
    # The answer came behind what was displayed until the worker heard the question; from here on it waits again.
    most = max(session.info.telemetry["queued_bytes"], 2 << 20) + (2 << 20)
    shown = []
    async for message in stream:
        shown.append(message)
        assert session.info.telemetry["queued_bytes"] < most
        await asyncio.sleep(0.005)
    assert [type(message) for message in shown] == [DisplayMessage] * 100 + [ResultMessage]


async def test_code_that_floods_with_displays_can_be_interrupted_even_if_nothing_reads(session):
    stream = session.execute(ExecuteMessage(code=BIG + "while True: display(big)"), timeout=None)
    await anext(stream)
    await wait_until(lambda: session.info.telemetry["queued_bytes"] > 1 << 20)
    assert (await session.interrupt()).state == "preserved"
    *_, last = [message async for message in stream]
    assert last.interrupted


async def test_displays_that_belong_to_no_execution_are_bounded(session):
    await session.run(
        BIG
        + "import threading\ndef show():\n    for _ in range(60): display(big)\nthreading.Thread(target=show).start()"
    )
    await wait_until(lambda: session.info.telemetry["general_dropped"] > 30)
    assert session.info.telemetry["general_queue"] < 20
    assert isinstance(await session.receive_message(timeout=60), DisplayMessage)
