"""Runs in which anything may fail at any time, resumed until they end; and saved runs with anything changed in them."""

import asyncio
import json
import types
from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.runs import MinimalSession
from standfast import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    OutputGuardrail,
    RunHooks,
    Runner,
    RunState,
    SQLiteSession,
    function_tool,
)
from standfast.base.errors import StandfastError
from standfast.testing import ScriptedModel, assistant_message, function_call
from standfast.tool_calls.call import ToolFailed


class Fault(Exception):
    pass


class Faults:
    """Decides, at every place that asks, whether it fails now. There is an end to it."""

    def __init__(self, draw: Any) -> None:
        self.draw, self.left = draw, 6

    def strike(self) -> None:
        if self.left and self.draw(st.sampled_from([False, False, False, True])):
            self.left -= 1
            raise Fault

    async def __call__(self, *_: Any, **__: Any) -> Any:
        self.strike()
        return GuardrailFunctionOutput(None, False)


class FailingSession(MinimalSession):
    """Fails before or after a write, without saying which."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self.faults = faults

    async def add_items(self, items: Any) -> None:
        self.faults.strike()
        await super().add_items(items)
        self.faults.strike()


class FailingStored(SQLiteSession):
    """The same with a session that takes keys."""

    faults: Faults

    async def add_items(self, items: Any, *, key: str | None = None, expected: Any = None) -> None:
        self.faults.strike()
        await super().add_items(items, key=key, expected=expected)
        self.faults.strike()


class FailingModel(ScriptedModel):
    faults: Faults

    async def get_response(self, *args: Any, **options: Any) -> Any:
        self.faults.strike()
        return await super().get_response(*args, **options)


def failing_hooks(faults: Faults) -> Any:
    names = [name for name in dir(RunHooks) if name.startswith("on_")]
    methods = {name: lambda self, *_: faults() for name in names}
    return types.new_class("FailingHooks", (RunHooks,), exec_body=lambda namespace: namespace.update(methods))()


class World:
    def __init__(self, draw: Any) -> None:
        self.faults, self.draw, self.begun, self.asked = Faults(draw), draw, Counter[str](), Counter[str]()
        faults = self.faults

        @function_tool(failure_error_function=None)
        async def effect(name: str) -> str:
            faults.strike()
            self.begun[name] += 1
            return name

        @function_tool(failure_error_function=None, needs_approval=True)
        async def asking(name: str) -> str:
            faults.strike()
            self.begun[name] += 1
            return name

        turns = draw(st.integers(1, 3))
        model = FailingModel([*(self.turn(turn) for turn in range(turns)), [assistant_message("end")]])
        model.faults = faults
        self.session: Any = FailingSession(faults)
        if draw(st.booleans()):
            self.session = FailingStored("s")
            self.session.faults = faults
        self.agent = Agent(
            "a",
            tools=[effect, asking],
            model=model,
            input_guardrails=[InputGuardrail(faults, run_in_parallel=False)],
            output_guardrails=[OutputGuardrail(faults)],
        )
        self.hooks = failing_hooks(faults)

    def turn(self, turn: int) -> list[Any]:
        tools = self.draw(st.lists(st.sampled_from(["effect", "asking"]), min_size=1, max_size=3))
        names = [f"{turn}.{place}" for place in range(len(tools))]
        return [function_call(tool, {"name": name}, call_id=name) for tool, name in zip(tools, names, strict=True)]

    async def live(self) -> Any:
        given: Any = "q"
        for _ in range(60):
            try:
                result = await Runner.run(self.agent, given, session=self.session, hooks=self.hooks)
            except (Fault, ToolFailed) as error:
                state = error.run_data.state  # type: ignore[union-attr]
            else:
                if not result.interruptions:
                    return result
                state = result.to_state()
                for item in result.interruptions:
                    self.asked[item.call_id] += item.uncertain
                    (state.call_again if item.uncertain else state.approve)(item)
            given = await RunState.from_string(self.agent, state.to_string())
        raise AssertionError("the run goes on for ever")


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_after_random_faults_the_run_ends_with_each_item_once(data: Any) -> None:
    world = World(data.draw)

    async def live() -> None:
        result = await world.live()
        assert result.final_output == "end"
        world.agent.model.assert_complete()
        stored = await world.session.get_items()
        assert stored == result.to_input_list()
        for name, times in world.begun.items():
            assert times <= 1 + world.asked[name], f"{name} was made {times} times and asked about {world.asked[name]}"

    asyncio.run(live())


JUNK: list[Any] = [None, -1, "x", [], {}, True, 1.5, "remove"]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, part in inside for place in places(part, (*path, name)))]


def changed(saved: Any, path: tuple[Any, ...], junk: Any) -> Any:
    found = deepcopy(saved)
    parent = found
    for name in path[:-1]:
        parent = parent[name]
    if junk == "remove":
        parent.pop(path[-1])
    else:
        parent[path[-1]] = junk
    return found


@pytest.mark.parametrize("junk", JUNK, ids=str)
async def test_a_saved_run_with_anything_changed_is_refused_or_runs(junk: Any) -> None:
    @function_tool(needs_approval=True)
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    inner = Agent("inner", tools=[pay])
    agent = Agent("outer", tools=[pay, inner.as_tool("ask", "asks")])
    inner.model = ScriptedModel([[function_call("pay", {"amount": 1}, call_id="i")]])
    calls = [function_call("pay", {"amount": 5}, call_id="1"), function_call("ask", {"input": "x"}, call_id="2")]
    agent.model = ScriptedModel([calls])
    state = (await Runner.run(agent, "q", context={"k": 1})).to_state()
    state.approve(state.get_interruptions()[0])
    good = json.loads(state.to_string())
    refused = ran = 0
    for path in places(good)[1:]:
        agent.model, inner.model = (ScriptedModel([[assistant_message("end")]] * 4) for _ in range(2))
        try:
            loaded = await RunState.from_json(agent, changed(good, path, junk))
            for item in loaded.get_interruptions():
                (loaded.call_again if item.uncertain else loaded.approve)(item)
            result = await Runner.run(agent, loaded)
        except StandfastError:
            refused += 1
        else:
            ran += 1
            await RunState.from_string(agent, result.to_state().to_string())
    assert refused > ran
