"""input() inside a worker."""

import pytest

from holdfast.workers import ErrorMessage, ExecuteMessage, InputMessage, OutputMessage, ResultMessage


async def answered(session, code, *answers, **fields):
    """Run code, answering its questions in order; returns the messages."""
    replies, seen = list(answers), []
    async for message in session.execute(ExecuteMessage(code=code, **fields), timeout=10):
        seen.append(message)
        if isinstance(message, InputMessage) and replies:
            assert await session.input_response(message.id, replies.pop(0))
    return seen


async def test_input_asks_the_host_and_returns_its_answer(session):
    seen = await answered(session, "name = input('who? ')\nname", "ann")
    question = next(m for m in seen if isinstance(m, InputMessage))
    assert (question.prompt, question.password) == ("who? ", False)
    assert seen[-1].value == "ann"


async def test_input_works_in_every_execution_not_only_the_first(session):
    for name in ("ann", "bob", "eve"):
        seen = await answered(session, "input()", name)
        assert seen[-1].value == name


async def test_what_was_printed_before_a_question_arrives_before_it(session):
    seen = await answered(session, "print('first', end='')\ninput('then')", "x")
    kinds = [type(m) for m in seen if isinstance(m, OutputMessage | InputMessage)]
    assert kinds == [OutputMessage, InputMessage]


async def test_several_questions_are_answered_by_their_ids(session):
    seen = await answered(session, "[input(), input(), input()]", "a", "b", "c")
    assert seen[-1].value == ["a", "b", "c"]


async def test_a_password_is_asked_for_as_such(session):
    seen = await answered(session, "import getpass\ngetpass.getpass('secret: ')", "s3cret")
    question = next(m for m in seen if isinstance(m, InputMessage))
    assert question.password
    assert seen[-1].value == "s3cret"


async def test_a_question_nobody_answers_times_out_in_the_code(start):
    session = await start(input_timeout=0.1)
    result = await session.run("try:\n    input()\nexcept TimeoutError as e: r = 'late'\nr")
    assert result.value == "late"


async def test_input_may_be_forbidden(session):
    seen = await answered(session, "input()", allow_input=False)
    assert isinstance(seen[-1], ErrorMessage)
    assert seen[-1].exception_type == "RuntimeError"
    assert isinstance((await answered(session, "input()", "ok"))[-1], ResultMessage)


async def test_input_may_be_forbidden_for_the_whole_session(start):
    session = await start(allow_input=False)
    assert (await session.run("input()")).error.exception_type == "RuntimeError"


async def test_an_answer_to_no_question_is_refused(session):
    assert not await session.input_response("no-such-question", "x")
    await answered(session, "input()", "x")
    assert (await session.run("1")).value == 1


@pytest.mark.parametrize("answer", ["", "ünïcode ☃", "x" * 200_000])
async def test_any_text_can_be_an_answer(session, answer):
    assert (await answered(session, "input()", answer))[-1].value == answer
