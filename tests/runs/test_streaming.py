"""A streamed run does the same as ``Runner.run``, and emits events."""

import asyncio
from typing import Any

import pytest

from standfast import Agent, Runner, RunState, SQLiteSession, UserError, function_tool
from standfast.testing import ScriptedModel, assistant_message, function_call


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


@function_tool(idempotent=True)
async def add(a: int, b: int) -> int:
    return a + b


def adder(*more: Any) -> Agent[Any]:
    steps = [[call("add", "1", a=1, b=1)], [call("add", "2", a=2, b=2)], [assistant_message("4")], *more]
    return Agent("a", tools=[add], model=ScriptedModel(steps))


async def test_events_come_in_order_and_the_result_is_complete_at_the_end() -> None:
    other = Agent("b", model=ScriptedModel([[assistant_message("from b")]]))
    agent = Agent("a", handoffs=[other], model=ScriptedModel([[call("transfer_to_b", "1")]]))
    result = Runner.run_streamed(agent, "q")
    assert not result.is_complete
    events = [event async for event in result.stream_events()]
    names = [getattr(event, "name", event.type) for event in events if event.type != "raw_response_event"]
    assert names == [
        "agent_updated_stream_event",
        "handoff_requested",
        "handoff_occured",
        "agent_updated_stream_event",
        "message_output_created",
    ]
    assert events[1].data.type == "response.created"
    assert (result.is_complete, result.final_output, result.last_agent, result.current_turn) == (
        True,
        "from b",
        other,
        2,
    )
    assert [event.item for event in events if event.type == "run_item_stream_event"] == result.new_items


async def test_cancelling_after_the_turn_completes_and_stores_it() -> None:
    agent, session = adder(), SQLiteSession("s")
    result = Runner.run_streamed(agent, "q", session=session)
    async for event in result.stream_events():
        if event.type == "run_item_stream_event" and event.name == "tool_called":
            result.cancel("after_turn")
    assert (result.is_complete, result.final_output, result.current_turn) == (True, None, 1)
    assert len(await session.get_items()) == 3
    state = await RunState.from_string(agent, result.to_state().to_string())
    assert (await Runner.run(agent, state, session=session)).final_output == "4"
    assert len(await session.get_items()) == 6


async def test_cancelling_at_once_ends_the_run_and_leaves_a_state() -> None:
    started = asyncio.Event()

    @function_tool(idempotent=True)
    async def slow() -> str:
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return "x"

    agent = Agent("a", tools=[slow], model=ScriptedModel([[call("slow", "1")], [assistant_message("ok")]]))
    result = Runner.run_streamed(agent, "q")
    async for event in result.stream_events():
        if getattr(event, "name", "") == "tool_called":
            await started.wait()
            result.cancel()
    assert result.is_complete
    assert result.run_loop_exception is None
    assert result.run_loop_task.done()
    state = await RunState.from_string(agent, result.to_state().to_string())
    assert (await Runner.run(agent, state)).final_output == "ok"


async def test_leaving_the_iteration_ends_the_run() -> None:
    result = Runner.run_streamed(adder(), "q")
    events = result.stream_events()
    await anext(events)
    await events.aclose()
    assert result.run_loop_task.done()
    assert result.is_complete


async def test_the_error_comes_after_the_events() -> None:
    agent = Agent("a", tools=[add], model=ScriptedModel([[call("add", "1", a=1, b=1)], RuntimeError("down")]))
    result = Runner.run_streamed(agent, "q")
    names: list[str] = []

    async def read() -> None:
        async for event in result.stream_events():
            names.append(getattr(event, "name", ""))  # noqa: PERF401 - what came before the error counts

    with pytest.raises(RuntimeError, match="down") as raised:
        await read()
    assert names[-1] == "tool_output"
    assert result.run_loop_exception is raised.value
    assert raised.value.run_data.state is not None


async def test_a_tool_output_is_emitted_although_another_tool_failed() -> None:
    @function_tool(failure_error_function=None)
    async def fail() -> str:
        raise ValueError("no")

    agent = Agent("a", tools=[add, fail], model=ScriptedModel([[call("add", "1", a=1, b=1), call("fail", "2")]]))
    result = Runner.run_streamed(agent, "q")
    outputs: list[Any] = []

    async def read() -> None:
        async for event in result.stream_events():
            if getattr(event, "name", "") == "tool_output":
                outputs.append(event.item.output)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(UserError, match="no"):
        await read()
    assert outputs == [2]


async def test_events_of_a_nested_agent_are_streamed() -> None:
    heard: list[Any] = []
    inner = Agent("inner", model=ScriptedModel([[assistant_message("in")]]))
    tool = inner.as_tool("ask", "asks", on_stream=heard.append)
    outer = Agent(
        "outer", tools=[tool], model=ScriptedModel([[call("ask", "1", input="x")], [assistant_message("out")]])
    )
    assert (await Runner.run(outer, "q")).final_output == "out"
    assert {event["agent"].name for event in heard} == {"inner"}
    assert heard[-1]["event"].name == "message_output_created"


async def test_a_slow_reader_holds_the_run_back_and_loses_nothing() -> None:
    steps = [[call("add", str(n), a=n, b=n)] for n in range(300)]
    agent = Agent("a", tools=[add], model=ScriptedModel([*steps, [assistant_message("ok")]]))
    result = Runner.run_streamed(agent, "q", max_turns=None)
    while result._channel.size < result._channel.capacity:  # noqa: ASYNC110 - nobody else can say when it is full
        await asyncio.sleep(0)
    assert not result.is_complete
    outputs = [event async for event in result.stream_events() if getattr(event, "name", "") == "tool_output"]
    assert len(outputs) == 300
