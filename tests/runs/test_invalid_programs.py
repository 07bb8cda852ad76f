"""Mistakes in a program are typed errors that name their location, before anything is done, or with a state."""

from typing import Any

import pytest

from factories.runs import MinimalSession, run_agent
from standfast import (
    Agent,
    HandoffInputData,
    InvalidDeclaration,
    MaxTurnsExceeded,
    ModelRetrySettings,
    ModelSettings,
    OutputGuardrail,
    RunConfig,
    Runner,
    RunState,
    SQLiteSession,
    UserError,
    function_tool,
    handoff,
)
from standfast.base.errors import StandfastError
from standfast.runs.runner import prepare_run
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call


@function_tool
async def free() -> str:
    return "free"


@function_tool(needs_approval=True)
async def gated() -> str:
    return "gated"


def answering(**parts: Any) -> Agent[Any]:
    return Agent("a", **{"model": ScriptedModel([[assistant_message("ok")]]), **parts})


def plain_function() -> str:
    return "x"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Agent("a", tools=[plain_function]), "is not a tool: decorate the function with @function_tool"),
        (lambda: RunConfig(model_provider=5), "model_provider must be a ModelProvider"),  # type: ignore[arg-type]
        (lambda: RunConfig(model=5), "model must be a name or a Model"),  # type: ignore[arg-type]
        (lambda: RunConfig(session_input_callback=5), "session_input_callback must be callable"),  # type: ignore[arg-type]
        (lambda: RunConfig.coerce({"nonsense": 1}), "unknown setting nonsense"),
        (lambda: Agent("a", tool_use_behavior="nonsense"), "tool_use_behavior must be"),  # type: ignore[arg-type]
        (lambda: Agent("a", output_type=5), "output_type must be"),  # type: ignore[arg-type]
        (lambda: prepare_run(5, "q"), "the starting agent must be an Agent"),  # type: ignore[arg-type]
    ],
)
def test_a_declaration_that_cannot_work_is_refused_at_once(make: Any, said: str) -> None:
    with pytest.raises(InvalidDeclaration, match=said):
        make()


@pytest.mark.parametrize("max_turns", [True, "5", 1.5])
async def test_a_number_of_turns_is_a_number(max_turns: Any) -> None:
    with pytest.raises(UserError, match="max_turns must be an integer or None"):
        await Runner.run(answering(), "q", max_turns=max_turns)


@pytest.mark.parametrize("session", [5, "s", object()])
async def test_an_object_without_the_four_methods_is_refused_as_session(session: Any) -> None:
    with pytest.raises(UserError, match="is not a session: it has no session_id, get_items"):
        await Runner.run(answering(), "q", session=session)


def raising(*_: Any) -> Any:
    raise ValueError("mine")


NO_TURN: dict[str, Any] = {
    "instructions that are no text": ({"instructions": lambda c, a: 5}, {}, "must return a string, got int"),
    "instructions that raise": ({"instructions": lambda c, a: raising()}, {}, "mine"),
    "a tool that cannot say if it is enabled": (
        {"tools": [function_tool(is_enabled=raising)(plain_function)]},
        {},
        "mine",
    ),
    "a handoff to nobody": ({"handoffs": [5]}, {}, "got 5"),
    "a callback that gives nothing": ({}, {"session_input_callback": lambda h, n: None}, "not NoneType"),
    "a callback that gives a tuple": ({}, {"session_input_callback": lambda h, n: (*h, *n)}, "not tuple"),
    "a callback that gives no items": ({}, {"session_input_callback": lambda h, n: [5]}, r"result\[0\]"),
    "a callback that raises": ({}, {"session_input_callback": raising}, "mine"),
    "a filter that gives a list": ({}, {"call_model_input_filter": lambda d: d.model_data.input}, "ModelInputData"),
    "a filter that raises": ({}, {"call_model_input_filter": raising}, "mine"),
}


@pytest.mark.parametrize("way", ["run", "streamed"])
@pytest.mark.parametrize("name", NO_TURN)
async def test_a_failure_before_the_model_call_leaves_a_state_to_resume_from(name: str, way: str) -> None:
    parts, config, said = NO_TURN[name]
    agent, session = answering(**parts), MinimalSession()
    with pytest.raises((StandfastError, ValueError), match=said) as raised:
        await run_agent(way, agent, "q", session=session, run_config=config)
    for part in parts:
        setattr(agent, part, getattr(Agent("b"), part))
    assert not agent.model.calls
    result = await Runner.run(agent, raised.value.run_data.state, session=session)  # type: ignore[union-attr]
    assert result.final_output == "ok"
    assert [item.get("role") for item in session.items] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_handoff": raising}, "mine"),
        ({"input_filter": raising}, "mine"),
        ({"input_filter": lambda data: data.input_history}, "must return HandoffInputData"),
    ],
)
async def test_a_handoff_that_fails_can_be_made_again(options: Any, said: str) -> None:
    second = Agent("second", model=ScriptedModel([[assistant_message("here")]]))
    agent = answering(model=ScriptedModel([[function_call("transfer_to_second", {}, call_id="1")]]))
    agent.handoffs = [handoff(second, **options)]
    with pytest.raises((UserError, ValueError), match=said) as raised:
        await Runner.run(agent, "q")
    agent.handoffs = [handoff(second, input_filter=lambda data: HandoffInputData("only this", (), ()))]
    state = await RunState.from_string(agent, raised.value.run_data.state.to_string())  # type: ignore[union-attr]
    result = await Runner.run(agent, state)
    assert (result.final_output, result.last_agent) == ("here", second)
    assert second.model.last_call.input == [{"role": "user", "content": "only this"}]


async def test_an_error_handler_that_raises_leaves_a_state() -> None:
    agent = answering(tools=[free], model=ScriptedModel([[function_call("free", {}, call_id="1")]]))
    with pytest.raises(ValueError, match="mine") as raised:
        await Runner.run(agent, "q", max_turns=1, error_handlers={"max_turns": raising})
    state = raised.value.run_data.state  # type: ignore[attr-defined]
    with pytest.raises(MaxTurnsExceeded):
        await Runner.run(agent, state)


@pytest.mark.parametrize("max_turns", [0, -1])
async def test_without_turns_the_model_is_not_called(max_turns: int) -> None:
    agent, session = answering(), MinimalSession()
    with pytest.raises(MaxTurnsExceeded):
        await Runner.run(agent, "q", max_turns=max_turns, session=session)
    assert not agent.model.calls
    assert len(session.items) == 1


@pytest.mark.parametrize("given", ["", []])
async def test_an_empty_input_is_an_input(given: Any) -> None:
    session = MinimalSession(items=[{"role": "user", "content": "before"}])
    agent = answering()
    assert (await Runner.run(agent, given, session=session)).final_output == "ok"
    assert len(agent.model.last_call.input) == (2 if given == "" else 1)
    assert len(session.items) == (3 if given == "" else 2)


# --- mistakes that others made --------------------------------------------------------------------


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_a_repeated_request_leaves_the_history_alone(way: str) -> None:
    retry = ModelRetrySettings(max_retries=2, policy=lambda context: True, backoff={"initial_delay": 0})
    model = ScriptedModel([ConnectionError("once"), ConnectionError("twice"), [assistant_message("ok")]])
    agent = answering(model=model, model_settings=ModelSettings(retry=retry))
    before = [{"role": "user", "content": "old q"}, {"role": "assistant", "content": "old a"}]
    session = MinimalSession(items=before)
    await run_agent(way, agent, "new q", session=session)
    assert session.items[:3] == [*before, {"role": "user", "content": "new q"}]
    assert len(session.items) == 4


async def test_what_a_provider_counted_itself_survives_a_snapshot() -> None:
    counted = {"tokens": 3, "details": {"by": ["day", "night"]}}
    step = ModelStep(output=[function_call("gated", {}, call_id="1")], raw_usage=counted)
    agent = answering(tools=[gated], model=ScriptedModel([step, [assistant_message("ok")]]))
    state = (await Runner.run(agent, "q")).to_state()
    state.approve(state.get_interruptions()[0])
    result = await Runner.run(agent, await RunState.from_string(agent, state.to_string()))
    assert [response.raw_usage for response in result.raw_responses] == [counted, None]


@pytest.mark.parametrize("order", [("free", "gated"), ("gated", "free")])
async def test_the_first_tool_is_the_models_first_however_long_it_waited(order: tuple[str, str]) -> None:
    calls = [function_call(name, {}, call_id=name) for name in order]
    agent = answering(tools=[free, gated], tool_use_behavior="stop_on_first_tool", model=ScriptedModel([calls]))
    state = (await Runner.run(agent, "q")).to_state()
    state.approve(state.get_interruptions()[0])
    result = await Runner.run(agent, await RunState.from_string(agent, state.to_string()))
    assert result.final_output == order[0]


async def test_a_guardrail_added_while_a_run_is_paused_is_run() -> None:
    asked: list[Any] = []

    def look(context: Any, agent: Any, output: Any) -> Any:
        asked.append(output)
        raise ValueError("not this")

    script = [[function_call("gated", {}, call_id="1")], [assistant_message("ok")]]
    agent, session = answering(tools=[gated], model=ScriptedModel(script)), MinimalSession()
    state = (await Runner.run(agent, "q", session=session)).to_state()
    state.approve(state.get_interruptions()[0])
    text = state.to_string()
    agent.output_guardrails = [OutputGuardrail(look)]
    with pytest.raises(ValueError, match="not this"):
        await Runner.run(agent, await RunState.from_string(agent, text), session=session)
    assert asked == ["ok"]
    assert [item.get("type") or item["role"] for item in session.items] == [
        "user",
        "function_call",
        "function_call_output",
    ]


async def test_a_snapshot_that_is_resumed_twice_is_stored_once() -> None:
    script = [[function_call("gated", {}, call_id="1")], [assistant_message("ok")], [assistant_message("ok")]]
    agent, session = answering(tools=[gated], model=ScriptedModel(script)), SQLiteSession("s")
    state = (await Runner.run(agent, "q", session=session)).to_state()
    state.approve(state.get_interruptions()[0])
    for _ in range(2):
        await Runner.run(agent, await RunState.from_string(agent, state.to_string()), session=session)
    assert len(await session.get_items()) == 4


async def test_an_agent_may_be_its_own_tool() -> None:
    agent = Agent("echo")
    agent.tools = [agent.as_tool("deeper", "ask yourself")]
    down = [[function_call("deeper", {"input": str(depth)}, call_id=str(depth))] for depth in range(15)]
    agent.model = ScriptedModel([*down, *([assistant_message(f"up {depth}")] for depth in range(16))])
    assert (await Runner.run(agent, "go")).final_output == "up 15"
