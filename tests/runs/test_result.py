"""What programs read from results and set on states."""

import gc
import weakref
from typing import Any

import pytest
from pydantic import BaseModel

from factories.runs import approve_all, run_agent
from standfast import (
    Agent,
    ModelSettings,
    RunConfig,
    Runner,
    RunState,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    handoff,
)
from standfast.agents.handoff_filters import remove_all_tools
from standfast.testing import ScriptedModel, assistant_message, function_call


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


@function_tool
async def add(a: int, b: int) -> int:
    return a + b


@function_tool(needs_approval=True)
async def pay(amount: int) -> str:
    return f"paid {amount}"


async def through_json(agent: Agent[Any], result: Any) -> RunState[Any]:
    return await RunState.from_string(agent, result.to_state().to_string())


@pytest.mark.parametrize("way", ["run", "streamed"])
async def test_the_conversation_as_input_is_whole_or_as_the_last_agent_saw_it(way: str) -> None:
    model = ScriptedModel([[call("add", "1", a=1, b=1)], [call("transfer_to_b", "2")], [assistant_message("here")]])
    second = Agent("b", model=model)
    agent = Agent("a", tools=[add], handoffs=[handoff(second, input_filter=remove_all_tools)], model=model)
    result = await run_agent(way, agent, "q")
    whole, seen = result.to_input_list(), result.to_input_list(mode="normalized")
    kinds = ["user", "function_call", "function_call_output", "message"]
    assert [item.get("type", item.get("role")) for item in whole] == kinds
    assert [item.get("type", item.get("role")) for item in seen] == ["user", "message"]
    second.model = ScriptedModel([[assistant_message("again")]])
    assert (await Runner.run(second, [*whole, {"role": "user", "content": "and?"}])).final_output == "again"


async def test_a_final_output_has_the_declared_type() -> None:
    class City(BaseModel):
        name: str

    agent = Agent("a", output_type=City, model=ScriptedModel([[assistant_message('{"name": "Oslo"}')]]))
    result = await Runner.run(agent, "q")
    assert result.final_output_as(City, raise_if_incorrect_type=True) == City(name="Oslo")
    with pytest.raises(TypeError, match="not of type str"):
        result.final_output_as(str, raise_if_incorrect_type=True)


async def test_items_let_go_of_their_agents() -> None:
    model = ScriptedModel([[call("add", "1", a=1, b=1)], [assistant_message("2")]])
    agent = Agent("a", tools=[add], model=model)
    result = await Runner.run(agent, "q")
    result.release_agents()
    assert [item.agent for item in result.new_items] == [agent] * 3  # as long as somebody has it
    items, known = result.new_items, weakref.ref(agent)
    assert result.final_output == "2"
    del agent, result, model
    gc.collect()
    assert known() is None
    assert [item.agent for item in items] == [None] * 3


async def test_texts_pictures_and_files_reach_the_model_as_parts() -> None:
    @function_tool
    async def everything() -> list[Any]:
        return [
            ToolOutputText(text="words"),
            ToolOutputImage(image_url="https://example.com/a.png", detail="low"),
            ToolOutputFileContent(file_url="https://example.com/a.pdf", filename="a.pdf"),
        ]

    model = ScriptedModel([[call("everything", "1")], [assistant_message("ok")]])
    await Runner.run(Agent("a", tools=[everything], model=model), "q")
    assert model.last_call.input[-1]["output"] == [
        {"type": "input_text", "text": "words"},
        {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "low"},
        {"type": "input_file", "file_url": "https://example.com/a.pdf", "filename": "a.pdf"},
    ]


async def test_custom_data_of_a_tool_is_stored_with_the_item_and_not_sent() -> None:
    @function_tool(custom_data_extractor=lambda data: {"length": len(data.output), "raw": data.output})
    async def read() -> str:
        return "long text"

    script = [[call("read", "1")], [call("pay", "2", amount=1)], [assistant_message("ok")]]
    agent = Agent("a", tools=[read, pay], model=ScriptedModel(script))
    state = await through_json(agent, await Runner.run(agent, "q"))
    approve_all(state)
    result = await Runner.run(agent, state)
    assert result.new_items[1].custom_data == {"length": 9, "raw": "long text"}
    assert "length" not in str(agent.model.last_call.input)


async def test_a_deferred_tool_is_found_again() -> None:
    @function_tool(needs_approval=True, defer_loading=True)
    async def rare() -> str:
        return "rare"

    agent = Agent("a", tools=[rare], model=ScriptedModel([[call("rare", "1")], [assistant_message("ok")]]))
    state = await through_json(agent, await Runner.run(agent, "q"))
    (item,) = state.get_interruptions()
    assert item.tool_lookup_key == ("deferred_top_level", "rare")
    state.approve(item)
    result = await Runner.run(agent, await RunState.from_string(agent, state.to_string()))
    assert result.new_items[2].output == "rare"


async def test_a_nested_agent_is_given_the_fields_of_its_parameters() -> None:
    class Order(BaseModel):
        item: str
        amount: int

    inner = Agent("inner", model=ScriptedModel([[assistant_message("done")]]))
    tool = inner.as_tool("order", "orders", parameters=Order, input_builder=lambda options: f"{options['params']}")
    model = ScriptedModel([[call("order", "1", item="tea", amount=2)], [assistant_message("ok")]])
    await Runner.run(Agent("outer", tools=[tool], model=model), "q")
    (said,) = inner.model.last_call.input
    assert "tea" in said["content"]


async def test_a_prompt_made_for_the_moment_reaches_the_model() -> None:
    def prompt(data: Any) -> Any:
        return {"id": "p1", "variables": {"who": data.context.context["name"]}}

    agent = Agent("a", prompt=prompt, model=ScriptedModel([[assistant_message("ok")]]))
    await Runner.run(agent, "q", context={"name": "Ann"})
    assert agent.model.last_call.prompt == {"id": "p1", "version": None, "variables": {"who": "Ann"}}


@pytest.mark.parametrize("used", [{}, {"root": ["pay"]}])
async def test_the_tool_use_tracker_can_be_set(used: dict[str, list[str]]) -> None:
    model = ScriptedModel([[call("pay", "1", amount=1)], [assistant_message("ok")]])
    agent = Agent("a", tools=[pay], model=model, model_settings=ModelSettings(tool_choice="required"))
    state = await through_json(agent, await Runner.run(agent, "q"))
    assert state.get_tool_use_tracker_snapshot() == {"root": ["pay"]}
    state.set_tool_use_tracker_snapshot(used)
    approve_all(state)
    await Runner.run(agent, state)
    assert model.last_call.model_settings.tool_choice == (None if used else "required")


async def test_staged_input_can_be_withdrawn() -> None:
    agent = Agent("a", tools=[pay], model=ScriptedModel([[call("pay", "1", amount=1)], [assistant_message("ok")]]))
    state = (await Runner.run(agent, "q")).to_state()
    state.add_input("never mind")
    assert [item["content"] for item in state.pending_input] == ["never mind"]
    state.clear_pending_input()
    approve_all(state)
    await Runner.run(agent, state)
    assert "never mind" not in str(agent.model.last_call.input)


async def test_a_trace_is_saved_without_its_key() -> None:
    agent = Agent("a", tools=[pay], model=ScriptedModel([[call("pay", "1", amount=1)]]))
    state = (await Runner.run(agent, "q")).to_state()
    state.set_trace({"id": "trace_1", "tracing_api_key": "sk-secret"})
    text = state.to_string()
    assert "trace_1" in text
    assert "sk-secret" not in text


async def test_a_nested_agent_has_its_own_number_of_turns() -> None:
    inner = Agent("inner", tools=[add], model=ScriptedModel([[call("add", str(n), a=1, b=1)] for n in range(2)]))
    tool = inner.as_tool("ask", "asks", max_turns=2, failure_error_function=lambda context, error: str(error))
    model = ScriptedModel([[call("ask", "1", input="x")], [assistant_message("ok")]])
    result = await Runner.run(Agent("outer", tools=[tool], model=model), "q", run_config=RunConfig())
    assert "Max turns (2) exceeded" in result.new_items[1].output
    assert result.final_output == "ok"
