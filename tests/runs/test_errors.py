"""Every error that ends a run leaves a state from which it can be resumed."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from factories.runs import MinimalSession, let_tasks_run, run_agent
from standfast import (
    Agent,
    GuardrailFunctionOutput,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    RunErrorHandlerResult,
    Runner,
    RunState,
    SQLiteSession,
    ToolExecutionConfig,
    ToolTimeoutError,
    UserError,
    function_tool,
    output_guardrail,
)
from standfast.runs.driver import drive
from standfast.runs.runner import prepare_run
from standfast.testing import ScriptedModel, assistant_message, function_call


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


@function_tool
async def add(a: int, b: int) -> int:
    return a + b


async def through_json(error: BaseException, agent: Agent[Any]) -> RunState[Any]:
    return await RunState.from_string(agent, error.run_data.state.to_string())  # type: ignore[attr-defined]


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_a_run_whose_model_failed_continues_where_it_was(way: str) -> None:
    model = ScriptedModel([[call("add", "1", a=1, b=2)], ConnectionError("gone"), [assistant_message("3")]])
    agent = Agent("a", tools=[add], model=model)
    session = SQLiteSession("s")
    with pytest.raises(ConnectionError) as raised:
        await run_agent(way, agent, "q", session=session)
    assert len(await session.get_items()) == 3
    result = await Runner.run(agent, await through_json(raised.value, agent), session=session)
    assert result.final_output == "3"
    assert [item.type for item in result.new_items] == [
        "tool_call_item",
        "tool_call_output_item",
        "message_output_item",
    ]
    assert len(await session.get_items()) == 4


async def test_what_a_sibling_returned_survives_a_failing_tool() -> None:
    attempts, finished = [], asyncio.Event()

    @function_tool(failure_error_function=None, on_uncertain="retry")
    async def flaky() -> str:
        attempts.append(1)
        await finished.wait()
        if len(attempts) == 1:
            raise RuntimeError("first time")
        return "second time"

    made = []

    @function_tool
    async def effect() -> str:
        made.append(1)
        finished.set()
        return "done"

    model = ScriptedModel([[call("flaky", "1"), call("effect", "2")], [assistant_message("ok")]])
    agent, session = Agent("a", tools=[flaky, effect], model=model), MinimalSession()
    with pytest.raises(UserError, match="first time") as raised:
        await Runner.run(agent, "q", session=session)
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert [item["type"] for item in session.items[1:]] == ["function_call", "function_call", "function_call_output"]
    result = await Runner.run(agent, await through_json(raised.value, agent), session=session)
    assert (result.final_output, len(made), len(attempts)) == ("ok", 1, 2)
    assert [item.get("call_id") for item in session.items[3:5]] == ["2", "1"]


async def test_no_more_calls_begin_after_one_has_failed() -> None:
    begun = []

    @function_tool(failure_error_function=None, on_uncertain="retry")
    async def tool(letter: str) -> str:
        begun.append(letter)
        if letter == "a" and begun.count("a") == 1:
            raise RuntimeError
        return letter

    calls = [call("tool", letter, letter=letter) for letter in "abc"]
    model = ScriptedModel([calls, [assistant_message("k")]])
    agent = Agent("a", tools=[tool], model=model)
    config = RunConfig(tool_execution=ToolExecutionConfig(max_function_tool_concurrency=1))
    with pytest.raises(UserError) as raised:
        await Runner.run(agent, "q", run_config=config)
    assert begun == ["a"]
    state = await through_json(raised.value, agent)
    assert (await Runner.run(agent, state, run_config=config)).final_output == "k"
    assert begun == ["a", "a", "b", "c"]


async def test_calls_run_at_the_same_time_up_to_the_limit_and_answer_in_order() -> None:
    running, most, gate = 0, 0, asyncio.Event()

    @function_tool
    async def slow(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 2:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0)
        running -= 1
        return n

    model = ScriptedModel([[call("slow", str(n), n=n) for n in range(5)], [assistant_message("ok")]])
    config = RunConfig(tool_execution=ToolExecutionConfig(max_function_tool_concurrency=2))
    result = await Runner.run(Agent("a", tools=[slow], model=model), "q", run_config=config)
    assert most == 2
    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == [0, 1, 2, 3, 4]


async def test_a_cancelled_run_keeps_finished_calls_and_marks_the_others_uncertain() -> None:
    started = asyncio.Event()

    @function_tool(idempotent=True)
    async def quick() -> str:
        return "quick"

    @function_tool
    async def endless() -> str:
        started.set()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([[call("quick", "1"), call("endless", "2")], [assistant_message("ok")]])
    agent, session = Agent("a", tools=[quick, endless], model=model), SQLiteSession("s")
    task = asyncio.create_task(Runner.run(agent, "q", session=session))
    await started.wait()
    await let_tasks_run()
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    state = await through_json(raised.value, agent)
    assert [call.status for call in state.data.calls] == ["done", "started"]
    result = await Runner.run(agent, state, session=session)
    (question,) = result.interruptions
    assert (question.call_id, question.uncertain) == ("2", True)
    state = result.to_state()
    state.reject(question, rejection_message="it did not happen")
    assert (await Runner.run(agent, state, session=session)).final_output == "ok"
    outputs = [item["output"] for item in await session.get_items() if item.get("type") == "function_call_output"]
    assert outputs == ["quick", "it did not happen"]


@pytest.mark.parametrize(("policy", "expected"), [("retry", "ok"), ("fail", None)])
async def test_a_call_that_may_have_happened_follows_its_tools_policy(policy: Any, expected: Any) -> None:
    @function_tool(on_uncertain=policy)
    async def effect() -> str:
        return "done"

    agent = Agent("a", tools=[effect], model=ScriptedModel([[call("effect", "1")], [assistant_message("ok")]]))
    run = prepare_run(agent, "q")
    await drive(run, max_steps=4)
    assert run.state.calls[0].status == "started"
    state = await RunState.from_string(agent, RunState.from_run(run).to_string())
    if expected is None:
        with pytest.raises(ModelBehaviorError, match="in progress"):
            await Runner.run(agent, state)
    else:
        assert (await Runner.run(agent, state)).final_output == expected


async def test_running_out_of_turns_can_be_continued_with_more() -> None:
    model = ScriptedModel([[call("add", "1", a=1, b=1)], [call("add", "2", a=1, b=1)], [assistant_message("2")]])
    agent = Agent("a", tools=[add], model=model)
    with pytest.raises(MaxTurnsExceeded) as raised:
        await Runner.run(agent, "q", max_turns=2)
    assert len(raised.value.run_data.new_items) == 4
    state = await through_json(raised.value, agent)
    state.max_turns = 3
    assert (await Runner.run(agent, state)).final_output == "2"


async def test_no_limit_of_turns() -> None:
    steps = [[call("add", str(n), a=1, b=1)] for n in range(30)]
    agent = Agent("a", tools=[add], model=ScriptedModel([*steps, [assistant_message("x")]]))
    assert (await Runner.run(agent, "q", max_turns=None)).final_output == "x"


class Answer(BaseModel):
    value: int


@pytest.mark.parametrize("included", [True, False])
async def test_a_handler_provides_the_output_instead_of_an_error(included: bool) -> None:
    session = SQLiteSession("s")
    agent = Agent("a", tools=[add], model=ScriptedModel([[call("add", "1", a=1, b=1)]]))
    seen = []

    def handler(data: Any) -> RunErrorHandlerResult:
        seen.append(data)
        return RunErrorHandlerResult("gave up", include_in_history=included)

    result = await Runner.run(agent, "q", max_turns=1, session=session, error_handlers={"max_turns": handler})
    assert result.final_output == "gave up"
    assert len(seen[0].run_data.new_items) == 2
    assert len(await session.get_items()) == (4 if included else 3)


async def test_handlers_for_refusals_and_malformed_outputs() -> None:
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I won't"}]}
    agent = Agent("a", output_type=Answer, model=ScriptedModel([[refusal], [assistant_message("no json")]]))
    handlers: Any = {
        "model_refusal": lambda data: {"final_output": {"value": -1}},
        "invalid_final_output": lambda data: Answer(value=-2),
    }
    assert (await Runner.run(agent, "q", error_handlers=handlers)).final_output == Answer(value=-1)
    assert (await Runner.run(agent, "q", error_handlers=handlers)).final_output == Answer(value=-2)


@pytest.mark.parametrize("kind", ["max_turns", "model_refusal"])
async def test_the_output_of_an_error_handler_is_checked_like_any_final_output(kind: str) -> None:
    judged: list[Any] = []

    @output_guardrail
    async def refuse(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
        judged.append(output)
        return GuardrailFunctionOutput("no", True)

    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I won't"}]}
    model = ScriptedModel([[refusal]])
    agent, session = Agent("a", output_guardrails=[refuse], model=model), MinimalSession()
    options: Any = {"max_turns": 0} if kind == "max_turns" else {}
    with pytest.raises(OutputGuardrailTripwireTriggered):
        await Runner.run(agent, "q", session=session, error_handlers={kind: lambda _: "secret"}, **options)
    assert judged == ["secret"]
    assert [item["content"] for item in session.items] == ["q"]


async def test_errors_of_the_model_are_typed_and_say_what() -> None:
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I won't"}]}
    for output, kind, words, output_type in [
        ([refusal], ModelRefusalError, "I won't", None),
        ([call("nope", "1")], ModelBehaviorError, "nope", None),
        ([assistant_message("{}")], ModelBehaviorError, "value", Answer),
        (
            [{"type": "function_call", "name": "add", "arguments": "{}", "call_id": ""}],
            ModelBehaviorError,
            "call_id",
            None,
        ),
        ([call("add", "1", a=1, b=1), call("add", "1", a=2, b=2)], ModelBehaviorError, "two calls", None),
        ([{"type": "computer_call", "call_id": "1", "action": {}}], ModelBehaviorError, "computer_call", None),
    ]:
        agent = Agent("a", tools=[add], output_type=output_type, model=ScriptedModel([output]))
        with pytest.raises(kind, match=words) as raised:
            await Runner.run(agent, "q")
        assert raised.value.run_data.state is not None


async def test_invalid_arguments_are_reported_to_the_model() -> None:
    bad = function_call("add", "{not json", call_id="1")
    model = ScriptedModel([[bad], [assistant_message("sorry")]])
    result = await Runner.run(Agent("a", tools=[add], model=model), "q")
    assert "Error" in result.new_items[1].output


async def test_a_tool_that_takes_too_long() -> None:
    @function_tool(timeout=0.01)
    async def told() -> None:
        await asyncio.Event().wait()

    @function_tool(timeout=0.01, timeout_behavior="raise_exception")
    async def raised() -> None:
        await asyncio.Event().wait()

    agent = Agent("a", tools=[told, raised], model=ScriptedModel([[call("told", "1")], [call("raised", "2")]]))
    with pytest.raises(ToolTimeoutError) as late:
        await Runner.run(agent, "q")
    assert "timed out" in late.value.run_data.new_items[1].output


async def test_input_that_is_no_conversation_is_refused() -> None:
    agent = Agent("a", model=ScriptedModel([]))
    for bad in (5, [5], [{"role": "user", "content": object()}], None):
        with pytest.raises(UserError, match="input"):
            await Runner.run(agent, bad)  # type: ignore[arg-type]


def test_run_sync_needs_no_loop() -> None:
    assert Runner.run_sync(Agent("a", model=ScriptedModel([[assistant_message("hi")]])), "q").final_output == "hi"


@pytest.mark.parametrize("session", [lambda: SQLiteSession("s"), MinimalSession], ids=["sqlite", "third-party"])
def test_a_conversation_continues_over_several_run_sync(session: Any) -> None:
    kept, agent = session(), Agent("a", model=ScriptedModel([[assistant_message("1")], [assistant_message("2")]]))
    for question in ("a", "b"):
        Runner.run_sync(agent, question, session=kept)
    assert len(agent.model.last_call.input) == 3
    assert len(asyncio.run(kept.get_items())) == 4


async def test_an_error_that_cannot_be_changed_carries_the_run_too() -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        number: int

    def instructions(context: Any, agent: Any) -> str:
        raise Frozen(7)

    agent = Agent("a", instructions=instructions, model=ScriptedModel([[assistant_message("ok")]]))
    with pytest.raises(Frozen) as raised:
        await Runner.run(agent, "q")
    agent.instructions = None
    assert (await Runner.run(agent, raised.value.run_data.state)).final_output == "ok"  # type: ignore[attr-defined]


async def test_run_sync_refuses_a_running_loop() -> None:
    with pytest.raises(UserError, match="event loop") as raised:
        Runner.run_sync(Agent("a", model=ScriptedModel([])), "q")
    assert isinstance(raised.value, RuntimeError)  # as in openai-agents


@pytest.mark.parametrize("always", [True, False])
async def test_an_approval_before_a_crash_does_not_approve_making_the_call_again(always: bool) -> None:
    made = []

    @function_tool(needs_approval=True)
    async def effect() -> str:
        made.append(1)
        return "done"

    agent = Agent("a", tools=[effect], model=ScriptedModel([[call("effect", "1")], [assistant_message("ok")]]))
    state = (await Runner.run(agent, "q")).to_state()
    state.approve(state.get_interruptions()[0], always_approve=always)
    run = prepare_run(agent, state)
    await drive(run, max_steps=2)
    assert run.state.calls[0].status == "started"
    state = RunState.from_run(run)
    for _ in range(3):  # as often as it is resumed without an answer
        result = await Runner.run(agent, await RunState.from_string(agent, state.to_string()))
        assert [item.uncertain for item in result.interruptions] == [True]
        state = result.to_state()
    assert made == []
    state.call_again(state.get_interruptions()[0])
    result = await Runner.run(agent, await RunState.from_string(agent, state.to_string()))
    assert (result.final_output, made) == ("ok", [1])


async def test_a_tool_that_returns_nothing_returned_nothing() -> None:
    @function_tool
    async def quiet() -> None:
        return None

    agent = Agent("a", tools=[quiet], model=ScriptedModel([[call("quiet", "1")], [assistant_message("ok")]]))
    item = (await Runner.run(agent, "q")).new_items[1]
    assert (item.output, item.raw_item["output"]) == (None, "None")
