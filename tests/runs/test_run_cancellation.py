"""A run that is cancelled at any point can be resumed: no item is stored twice, and no call repeated unasked."""

import asyncio
import types
from typing import Any

import pytest

from factories.runs import MinimalSession, approve_all, run_agent
from standfast import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    InputGuardrail,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    ToolGuardrailFunctionOutput,
    ToolOutputGuardrailTripwireTriggered,
    UserError,
    function_tool,
    tool_output_guardrail,
)
from standfast.testing import ScriptedModel, assistant_message, function_call
from standfast.testing.interruption import cancel_at_every_await


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


def kinds(items: Any) -> list[str]:
    return [item.get("type") or item["role"] for item in items]


async def resumed(agent: Agent[Any], state: Any, session: Any) -> tuple[Any, int]:
    """The run to its end through JSON, with a yes to every question, and how many there were."""
    asked = 0
    result = await Runner.run(agent, await RunState.from_string(agent, state.to_string()), session=session)
    while result.interruptions:
        asked += len(result.interruptions)
        state = result.to_state()
        approve_all(state)
        result = await Runner.run(agent, state, session=session)
    return result, asked


class Waiting(ScriptedModel):
    async def get_response(self, *args: Any, **options: Any) -> Any:
        await asyncio.sleep(0)
        return await super().get_response(*args, **options)


class Cut:
    """One run with two tools and a guardrail that all have to be waited for."""

    def __init__(self, way: str, session: Any) -> None:
        self.way, self.session, self.made, self.state = way, session, 0, None
        pause = asyncio.sleep

        @function_tool
        async def once() -> str:
            await pause(0)
            self.made += 1
            await pause(0)
            return "1"

        @function_tool(idempotent=True)
        async def often() -> str:
            await pause(0)
            return "2"

        async def look(*_: Any) -> GuardrailFunctionOutput:
            await pause(0)
            return GuardrailFunctionOutput(None, False)

        self.agent = Agent("a", tools=[once, often], input_guardrails=[InputGuardrail(look)])
        self.agent.model = Waiting(self.script(0))

    def script(self, turn: int) -> list[Any]:
        return [[call("once", "1"), call("often", "2")], [assistant_message("end")]][turn:]

    async def run(self) -> None:
        if self.way == "run":
            try:
                await Runner.run(self.agent, "q", session=self.session)
            except asyncio.CancelledError as error:
                self.state = error.run_data.state  # type: ignore[attr-defined]
                raise
            return
        result = Runner.run_streamed(self.agent, "q", session=self.session)
        try:
            async for _ in result.stream_events():
                pass
        finally:
            self.state = None if result.final_output else result.to_state()


@pytest.mark.parametrize("way", ["run", "streamed"])
@pytest.mark.parametrize("session", [MinimalSession, lambda: SQLiteSession("s")], ids=["third-party", "sqlite"])
async def test_a_run_cancelled_at_any_await_continues_from_there(session: Any, way: str) -> None:
    cuts: list[Cut] = []

    async def scenario() -> None:
        cuts.append(Cut(way, session()))
        await cuts[-1].run()

    assert await cancel_at_every_await(scenario) >= 3
    interrupted = [cut for cut in cuts if cut.state is not None]
    assert len(interrupted) >= 3
    for cut in interrupted:
        data = cut.state.data
        cut.agent.model = ScriptedModel([] if data.answer else cut.script(data.turn))
        result, asked = await resumed(cut.agent, cut.state, cut.session)
        assert result.final_output == "end"
        assert cut.made == 1 or asked
        calls, outputs = ["function_call"] * 2, ["function_call_output"] * 2
        assert kinds(await cut.session.get_items()) == ["user", *calls, *outputs, "message"]


class FailingOnce(MinimalSession):
    """Fails at one write: before anything is written, or after."""

    def __init__(self, at: int, *, written: bool) -> None:
        super().__init__()
        self.left, self.written = at, written

    async def add_items(self, items: Any) -> None:
        self.left -= 1
        if self.left == 0 and not self.written:
            raise OSError("disk full")
        await super().add_items(items)
        if self.left == 0:
            raise OSError("connection lost")


@pytest.mark.parametrize("way", ["run", "streamed"])
@pytest.mark.parametrize("written", [True, False], ids=["after writing", "before writing"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_write_that_fails_is_made_up_for(at: int, written: bool, way: str) -> None:
    made: list[int] = []

    @function_tool
    async def effect() -> str:
        made.append(1)
        return "x"

    model = ScriptedModel([[call("effect", "1")], [call("effect", "2")], [assistant_message("end")]])
    agent, session = Agent("a", tools=[effect], model=model), FailingOnce(at, written=written)
    with pytest.raises(OSError, match=r"disk full|connection lost") as raised:
        await run_agent(way, agent, "q", session=session)
    result, asked = await resumed(agent, raised.value.run_data.state, session)  # type: ignore[attr-defined]
    assert (result.final_output, asked, len(made)) == ("end", 0, 2)
    assert kinds(session.items) == ["user", *["function_call", "function_call_output"] * 2, "message"]


async def test_cancelling_after_the_turn_waits_for_the_tool() -> None:
    entered, gate = asyncio.Event(), asyncio.Event()

    @function_tool
    async def slow() -> str:
        entered.set()
        await gate.wait()
        return "done"

    agent = Agent("a", tools=[slow], model=ScriptedModel([[call("slow", "1")], [assistant_message("end")]]))
    session = MinimalSession()
    result = Runner.run_streamed(agent, "q", session=session)

    async def read() -> None:
        async for _ in result.stream_events():
            pass

    reading = asyncio.create_task(read())
    await entered.wait()
    result.cancel("after_turn")
    gate.set()
    await reading
    assert kinds(session.items) == ["user", "function_call", "function_call_output"]
    assert (result.final_output, result.is_complete, len(agent.model.calls)) == (None, True, 1)
    final, asked = await resumed(agent, result.to_state(), session)
    assert (final.final_output, asked) == ("end", 0)


async def test_a_run_that_is_cancelled_before_it_began_is_complete() -> None:
    agent = Agent("a", model=ScriptedModel([[assistant_message("end")]]))
    result = Runner.run_streamed(agent, "q")
    result.cancel()
    assert [event async for event in result.stream_events()] == []
    assert result.is_complete
    assert (await resumed(agent, result.to_state(), None))[0].final_output == "end"


HOOKS = [
    *((RunHooks, name) for name in dir(RunHooks) if name.startswith("on_")),
    *((AgentHooks, name) for name in dir(AgentHooks) if name.startswith("on_")),
]


@pytest.mark.parametrize("way", ["run", "streamed"])
@pytest.mark.parametrize(("base", "name"), HOOKS, ids=[f"{base.__name__}.{name}" for base, name in HOOKS])
async def test_a_run_continues_after_a_hook_that_raised(base: Any, name: str, way: str) -> None:
    made: list[int] = []
    faults = [ValueError(name)]

    async def fail(*_: Any, **__: Any) -> None:
        if faults:
            raise faults.pop()

    @function_tool
    async def effect() -> str:
        made.append(1)
        return "x"

    hooks: Any = types.new_class("Failing", (base,), exec_body=lambda namespace: namespace.update({name: fail}))()
    own = hooks if base is AgentHooks else None
    second = Agent("second", model=ScriptedModel([[assistant_message("end")]] * 2), hooks=own)
    script = [[call("effect", "1")], [call("transfer_to_second", "2")]]
    agent = Agent("first", tools=[effect], handoffs=[second], model=ScriptedModel(script), hooks=own)
    session = MinimalSession()
    with pytest.raises((ValueError, UserError), match=name) as raised:
        await run_agent(way, agent, "q", session=session, hooks=hooks if own is None else None)
    result, asked = await resumed(agent, raised.value.run_data.state, session)  # type: ignore[attr-defined]
    assert (result.final_output, asked, len(made)) == ("end", 0, 1)
    assert kinds(session.items) == ["user", *["function_call", "function_call_output"] * 2, "message"]


@pytest.mark.parametrize("trips", [True, False], ids=["trips", "is broken"])
async def test_a_tool_whose_output_was_refused_is_not_called_again_without_a_decision(trips: bool) -> None:
    made: list[int] = []
    strict = [True]

    @tool_output_guardrail
    async def look(data: Any) -> ToolGuardrailFunctionOutput:
        if not strict:
            return ToolGuardrailFunctionOutput.allow()
        strict.clear()
        if not trips:
            raise ValueError("broken")
        return ToolGuardrailFunctionOutput.raise_exception("no")

    @function_tool(tool_output_guardrails=[look])
    async def effect() -> str:
        made.append(1)
        return "x"

    agent = Agent("a", tools=[effect], model=ScriptedModel([[call("effect", "1")], [assistant_message("end")]]))
    with pytest.raises(ToolOutputGuardrailTripwireTriggered if trips else UserError) as raised:
        await Runner.run(agent, "q")
    state = await RunState.from_string(agent, raised.value.run_data.state.to_string())
    paused = await Runner.run(agent, state)
    assert [item.uncertain for item in paused.interruptions] == [True]
    assert made == [1]
    state = paused.to_state()
    state.reject(paused.interruptions[0], rejection_message="withheld")
    result = await Runner.run(agent, state)
    assert (result.final_output, made) == ("end", [1])
    assert result.new_items[1].output == "withheld"
