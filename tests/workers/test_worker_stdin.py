"""input() inside a worker."""

import pytest

from factories.worker_fixtures import in_one_mode
from standfast.workers import ErrorMessage, ExecuteMessage, InputMessage, OutputMessage, ResultMessage


async def run_with_answers(session, code, *answers, **fields):
    """Run code, answer its input requests in order, and return the messages."""
    replies, seen = list(answers), []
    async for message in session.execute(ExecuteMessage(code=code, **fields), timeout=60):
        seen.append(message)
        if isinstance(message, InputMessage) and replies:
            assert await session.input_response(message.id, replies.pop(0))
    return seen


async def test_input_asks_the_host_and_returns_its_answer(session):
    seen = await run_with_answers(session, "name = input('who? ')\nname", "ann")
    question = next(m for m in seen if isinstance(m, InputMessage))
    assert (question.prompt, question.password) == ("who? ", False)
    assert seen[-1].value == "ann"


async def test_input_works_in_every_execution_not_only_the_first(session):
    for name in ("ann", "bob", "eve"):
        seen = await run_with_answers(session, "input()", name)
        assert seen[-1].value == name


async def test_output_before_an_input_request_arrives_first(session):
    seen = await run_with_answers(session, "print('first', end='')\ninput('then')", "x")
    kinds = [type(m) for m in seen if isinstance(m, OutputMessage | InputMessage)]
    assert kinds == [OutputMessage, InputMessage]


@in_one_mode
async def test_several_input_requests_are_answered_by_their_ids(session):
    seen = await run_with_answers(session, "[input(), input(), input()]", "a", "b", "c")
    assert seen[-1].value == ["a", "b", "c"]


@in_one_mode
async def test_a_password_request_is_marked(session):
    seen = await run_with_answers(session, "import getpass\ngetpass.getpass('secret: ')", "s3cret")
    question = next(m for m in seen if isinstance(m, InputMessage))
    assert question.password
    assert seen[-1].value == "s3cret"


async def test_an_unanswered_input_request_times_out_in_the_code(start):
    session = await start(input_timeout=0.1)
    result = await session.run("try:\n    input()\nexcept TimeoutError as e: r = 'late'\nr")
    assert result.value == "late"


@in_one_mode
async def test_input_may_be_forbidden(session):
    seen = await run_with_answers(session, "input()", allow_input=False)
    assert isinstance(seen[-1], ErrorMessage)
    assert seen[-1].exception_type == "RuntimeError"
    assert isinstance((await run_with_answers(session, "input()", "ok"))[-1], ResultMessage)


@in_one_mode
async def test_input_may_be_forbidden_for_the_whole_session(start):
    session = await start(allow_input=False)
    assert (await session.run("input()")).error.exception_type == "RuntimeError"


@in_one_mode
async def test_an_answer_to_an_unknown_request_is_refused(session):
    assert not await session.input_response("no-such-question", "x")
    await run_with_answers(session, "input()", "x")
    assert (await session.run("1")).value == 1


@in_one_mode
@pytest.mark.parametrize("answer", ["", "ünïcode ☃", "x" * 200_000])
async def test_any_text_can_be_an_answer(session, answer):
    assert (await run_with_answers(session, "input()", answer))[-1].value == answer


async def test_reading_a_line_of_standard_input_requests_input(session):
    seen = await run_with_answers(
        session, "import sys\n[sys.stdin.readline(), input(), sys.stdin.readline(2)]", "a", "b", "cde"
    )
    assert seen[-1].value == ["a\n", "b", "cd"]
    assert (await run_with_answers(session, "sys.stdin.readline()"))[-1].value == "e\n"


async def test_standard_input_can_be_read_to_its_end(session):
    lines, seen = ["a", "b\nc"], []
    code = "import sys\nfirst = [line for line in sys.stdin]\n[first, sys.stdin.read()]"
    async for message in session.execute(ExecuteMessage(code=code), timeout=60):
        seen.append(message)
        if isinstance(message, InputMessage):
            await session.input_response(message.id, lines[0] if lines else "", eof=not lines)
            lines = lines[1:]
    assert seen[-1].value == [["a\n", "b\n", "c\n"], ""]


@in_one_mode
async def test_standard_input_is_as_forbidden_as_input(session):
    seen = await run_with_answers(session, "import sys; sys.stdin.readline()", allow_input=False)
    assert seen[-1].exception_type == "RuntimeError"


async def test_code_that_puts_its_own_standard_input_there_reads_from_it(session):
    seen = await run_with_answers(session, "import io, sys\nsys.stdin = io.StringIO('mine\\n')\ninput()")
    assert seen[-1].value == "mine"


async def test_a_subprocess_finds_an_empty_standard_input(session):
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import sys; print(repr(sys.stdin.read()))'], stdin=sys.stdin).returncode"
    seen = await run_with_answers(session, code)
    assert seen[-1].value == 0
    assert "".join(m.data for m in seen if isinstance(m, OutputMessage)) == "''\n"


async def test_exit_ends_a_cell_and_does_not_affect_the_next(session):
    assert (await session.run("exit()")).error.exception_type == "SystemExit"
    assert (await session.run("help(len)")).stdout.startswith("Help on built-in function len")
    assert (await run_with_answers(session, "import sys; sys.stdin.readline()", "a"))[-1].value == "a\n"


async def test_an_answer_that_comes_too_late_is_refused(start):
    session = await start(input_timeout=0.05)
    code = "try:\n    input()\nexcept TimeoutError: print('gave up')\ninput()"
    questions, late = [], []
    async for message in session.execute(ExecuteMessage(code=code), timeout=60):
        if isinstance(message, InputMessage):
            questions.append(message.id)
        if isinstance(message, OutputMessage):
            late.append(await session.input_response(questions[0], "too late"))
    assert late == [False]
    assert message.exception_type == "TimeoutError"
    assert session.info.telemetry["open_input_requests"] == 0


THREADED = (
    "import threading\ngot = []\n"
    "def ask():\n"
    "    try: got.append(input('q'))\n"
    "    except BaseException as problem: got.append(type(problem).__name__)\n"
    "thread = threading.Thread(target=ask); thread.start()\n"
)


async def test_a_thread_may_request_input_while_the_main_thread_computes(session):
    seen = await run_with_answers(session, THREADED + "while not got: pass\ngot", "from afar")
    assert seen[-1].value == ["from afar"]


async def test_an_input_request_of_a_thread_ends_with_its_execution(session):
    code = THREADED + "import os\nwhile not os.path.exists('asked'): pass"
    async for message in session.execute(ExecuteMessage(code=code), timeout=60):
        if isinstance(message, InputMessage):
            await session.files.write("asked", "")
    assert (await session.run("thread.join(60); got", timeout=60)).value == ["EOFError"]


async def test_an_input_request_of_a_thread_does_not_block_an_interrupt(session):
    running = session.execute(ExecuteMessage(code=THREADED + "thread.join()"), timeout=None)
    async for message in running:
        if isinstance(message, InputMessage):
            assert (await session.interrupt()).state == "preserved"
    assert message.interrupted
    # Not by join(): when that is interrupted, Python 3.11 takes the thread for ended.
    assert (await session.run("while not got: pass\ngot", timeout=60)).value == ["EOFError"]


async def test_two_input_requests_at_once_get_their_own_answers(session):
    answers = {"q": "for the thread", "main": "for the main one"}
    async for message in session.execute(
        ExecuteMessage(code=THREADED + "mine = input('main'); thread.join(); [mine, got]"), timeout=60
    ):
        if isinstance(message, InputMessage):
            assert await session.input_response(message.id, answers[message.prompt])
    assert message.value == ["for the main one", ["for the thread"]]
