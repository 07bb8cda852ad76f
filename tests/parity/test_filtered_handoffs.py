"""Handoffs whose filter changes what the next agent is shown."""

from typing import Any

import pytest


def list_kinds(items: Any) -> list[str]:
    return [item.get("call_id") or str(item["content"]) for item in items if item.get("type") != "message"]


def make_agents(lib: Any, **options: Any) -> tuple[Any, Any]:
    @lib.function_tool
    def look() -> str:
        return "seen"

    b = lib.Agent(name="b", model=lib.ScriptedModel([[lib.assistant_message("last")]]))
    script = [
        [lib.function_call("look", {}, call_id="c1")],
        [lib.assistant_message("one moment"), lib.function_call("transfer_to_b", {}, call_id="h")],
    ]
    target = lib.handoff(b, **options)
    return lib.Agent(name="a", model=lib.ScriptedModel(script), tools=[look], handoffs=[target]), b


@pytest.mark.parametrize("stored", [False, True])
async def test_what_a_filter_removed_does_not_come_back(lib: Any, stored: bool) -> None:
    def drop(data: Any) -> Any:
        return data.clone(input_history=tuple(data.input_history)[1:], pre_handoff_items=(), new_items=())

    agent, b = make_agents(lib, input_filter=drop)
    given = [{"role": "user", "content": "my PIN is 1234"}, {"role": "user", "content": "speak Spanish"}]
    session = lib.SQLiteSession("s")
    config = lib.RunConfig(session_input_callback=lambda history, new: history + new)
    result = await lib.Runner.run(agent, given, session=session if stored else None, run_config=config)
    assert result.input == given[1:]
    assert b.model.calls[0].input == given[1:]
    assert list_kinds(result.to_input_list()) == ["speak Spanish", "c1", "c1"]
    assert [item.type for item in result.new_items] == [
        "tool_call_item",
        "tool_call_output_item",
        "message_output_item",
    ]
    kept = await session.get_items()
    assert list_kinds(kept) == (["my PIN is 1234", "speak Spanish", "c1", "c1"] if stored else [])
    session.close()


async def test_input_items_are_shown_and_new_items_are_kept(lib: Any) -> None:
    agent, b = make_agents(lib, input_filter=lambda data: data.clone(input_items=()))
    result = await lib.Runner.run(agent, "hi")
    assert list_kinds(b.model.calls[0].input) == ["hi", "c1", "c1"]
    assert list_kinds(result.to_input_list()) == ["hi", "c1", "c1", "h", "h"]


async def test_a_nested_history_is_part_of_the_result(lib: Any) -> None:
    agent, b = make_agents(lib, nest_handoff_history=True)
    result = await lib.Runner.run(agent, "hi")
    before, said, after = result.input
    assert before["content"].splitlines()[:3] == [
        "For context, here is the conversation so far between the user and the previous agent:",
        "<CONVERSATION HISTORY>",
        "1. user: hi",
    ]
    assert said["content"][0]["text"] == "one moment"
    assert len(after["content"].splitlines()) == 5
    assert b.model.calls[0].input == result.input
    assert [item.get("type") for item in result.to_input_list()[3:]] == [
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]


async def test_a_summary_names_speakers_and_keeps_reasoning(lib: Any) -> None:
    history = (
        {"role": "user", "content": "q", "name": "Ann"},
        {"type": "reasoning", "id": "r", "summary": []},
        {"role": "system", "content": "s"},
    )
    nested = lib.nest_handoff_history(lib.HandoffInputData(history, (), ()))
    assert nested.input_history[0]["content"].splitlines()[2:-1] == [
        "1. user (Ann): q",
        '2. {"type": "reasoning", "id": "r", "summary": []}',
        "3. system: s",
    ]
    empty = lib.nest_handoff_history(lib.HandoffInputData((), (), ()))
    assert empty.input_history[0]["content"].splitlines()[2:-1] == ["(no previous turns recorded)"]
