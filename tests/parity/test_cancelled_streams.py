"""Cancelling a streamed run."""

from typing import Any

import pytest


def make_agent(lib: Any, made: list[str]) -> tuple[Any, Any]:
    @lib.function_tool
    def pay() -> str:
        made.append("pay")
        return "paid"

    script = [[lib.function_call("pay", {}, call_id="c1")], [lib.assistant_message("done")]]
    model = lib.ScriptedModel(script)
    return lib.Agent(name="a", model=model, tools=[pay]), model


async def test_a_cancelled_stream_ends_at_once(lib: Any) -> None:
    agent, model = make_agent(lib, made := [])
    result = lib.Runner.run_streamed(agent, "hi")
    seen = 0
    async for _ in result.stream_events():
        seen += 1
        if seen == 2:
            result.cancel()
    assert (seen, result.final_output, result.new_items, made) == (2, None, [], [])
    assert result.is_complete
    assert len(model.calls) == 1


async def test_no_call_of_the_model_is_begun_after_a_cancellation(lib: Any) -> None:
    agent, model = make_agent(lib, made := [])
    result = lib.Runner.run_streamed(agent, "hi")
    async for event in result.stream_events():
        if getattr(event, "name", "") == "tool_called":
            result.cancel()
    assert (made, len(model.calls), result.final_output) == ([], 1, None)


async def test_a_cancelled_handoff_is_not_stored(lib: Any) -> None:
    target = lib.Agent(name="b", model=lib.ScriptedModel([[lib.assistant_message("hi")]]))
    model = lib.ScriptedModel([[lib.function_call("transfer_to_b", {}, call_id="c")]])
    session = lib.SQLiteSession("s")
    result = lib.Runner.run_streamed(lib.Agent(name="a", model=model, handoffs=[target]), "hi", session=session)
    seen = 0
    async for _ in result.stream_events():
        seen += 1
        if seen == 2:
            result.cancel()
    assert result.last_agent.name == "a"
    assert await session.get_items() == [{"content": "hi", "role": "user"}]
    session.close()


async def test_the_next_turn_waits_until_the_events_of_this_one_are_handled(lib: Any) -> None:
    agent, model = make_agent(lib, made := [])
    result = lib.Runner.run_streamed(agent, "hi")
    async for event in result.stream_events():
        if getattr(event, "name", "") == "tool_output":
            result.cancel(mode="after_turn")
    assert (made, len(model.calls), result.final_output) == (["pay"], 1, None)
    assert [item.type for item in result.new_items] == ["tool_call_item", "tool_call_output_item"]


async def test_an_error_after_the_cancellation_is_not_raised(lib: Any) -> None:
    agent = lib.Agent(name="a", model=lib.ScriptedModel([ValueError("late")]))
    result = lib.Runner.run_streamed(agent, "hi")
    async for _ in result.stream_events():
        result.cancel()


async def test_a_run_without_a_reader_continues(lib: Any) -> None:
    agent, model = make_agent(lib, [])
    result = lib.Runner.run_streamed(agent, "hi")
    await result.run_loop_task
    assert (result.final_output, len(model.calls)) == ("done", 2)
    assert len([event async for event in result.stream_events()]) == 20


async def test_the_task_of_a_run_raises_what_ended_it(lib: Any) -> None:
    result = lib.Runner.run_streamed(lib.Agent(name="a", model=lib.ScriptedModel([ValueError("down")])), "hi")
    with pytest.raises(ValueError, match="down"):
        await result.run_loop_task
    with pytest.raises(ValueError, match="down"):
        assert [event async for event in result.stream_events()]


@pytest.mark.parametrize("at", ["tool_called", "tool_output"])
async def test_a_call_that_was_made_is_stored_though_the_stream_is_cancelled(lib: Any, at: str) -> None:
    agent, _ = make_agent(lib, made := [])
    session = lib.SQLiteSession("s")
    result = lib.Runner.run_streamed(agent, "hi", session=session)
    async for event in result.stream_events():
        if getattr(event, "name", "") == at:
            result.cancel()
    stored = [item.get("type", "message") for item in await session.get_items()]
    session.close()
    expected = {
        "tool_called": ([], ["message"]),
        "tool_output": (["pay"], ["message", "function_call", "function_call_output"]),
    }
    assert (made, stored) == expected[at]
