"""Which hooks are called during a run, and with what."""

from typing import Any

import pytest
from pydantic import BaseModel

import standfast
from factories.runs import MinimalSession
from standfast import (
    Agent,
    AgentHooks,
    GuardrailFunctionOutput,
    HandoffInputData,
    InputGuardrailTripwireTriggered,
    ModelSettings,
    RunConfig,
    RunHooks,
    Runner,
    ToolContext,
    UserError,
    function_tool,
    handoff,
    input_guardrail,
)
from standfast.testing import ScriptedModel, assistant_message, function_call


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


class HookLog(RunHooks[Any]):
    def __init__(self) -> None:
        self.log: list[str] = []

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        self.log.append(f"start {agent.name} {len(context.turn_input)}")

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        self.log.append(f"end {agent.name} {output}")

    async def on_llm_start(self, context: Any, agent: Any, system_prompt: Any, input_items: Any) -> None:
        self.log.append(f"ask {system_prompt} {len(input_items)}")

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        self.log.append(f"answer {response.response_id}")

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        self.log.append(f"{from_agent.name} to {to_agent.name}")

    async def on_tool_start(self, context: Any, agent: Any, tool: Any) -> None:
        self.log.append(f"call {tool.name} {context.tool_call_id} {context.tool_arguments}")

    async def on_tool_end(self, context: Any, agent: Any, tool: Any, result: Any) -> None:
        self.log.append(f"called {tool.name} {result}")


class OwnHooks(AgentHooks[Any]):
    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def on_start(self, context: Any, agent: Any) -> None:
        self.log.append(f"own start {agent.name}")

    async def on_handoff(self, context: Any, agent: Any, source: Any) -> None:
        self.log.append(f"own {source.name} to {agent.name}")

    async def on_end(self, context: Any, agent: Any, output: Any) -> None:
        self.log.append(f"own end {agent.name}")


async def test_hooks_are_called_in_order() -> None:
    hooks = HookLog()

    @function_tool
    async def twice(n: int) -> int:
        return 2 * n

    other = Agent("b", instructions="B", hooks=OwnHooks(hooks.log), model=ScriptedModel([[assistant_message("done")]]))
    steps = [[call("twice", "1", n=2)], [call("transfer_to_b", "2")]]
    agent = Agent("a", instructions="A", tools=[twice], handoffs=[other], model=ScriptedModel(steps))
    await Runner.run(agent, "q", hooks=hooks)
    assert hooks.log == [
        "start a 1",
        "ask A 1",
        "answer resp-789",
        'call twice 1 {"n":2}',
        "called twice 4",
        "ask A 3",
        "answer resp-789",
        "a to b",
        "own a to b",
        "start b 1",
        "own start b",
        "ask B 5",
        "answer resp-789",
        "end b done",
        "own end b",
    ]


async def test_hooks_are_not_called_for_a_request_that_a_guardrail_prevented() -> None:
    @input_guardrail(run_in_parallel=False)
    async def refuse(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput("no", True)

    hooks, model = HookLog(), ScriptedModel([[assistant_message("ok")]])
    with pytest.raises(InputGuardrailTripwireTriggered):
        await Runner.run(Agent("a", input_guardrails=[refuse], model=model), "q", hooks=hooks)
    assert hooks.log == []


async def test_a_handoff_takes_its_input_and_only_the_first_is_taken() -> None:
    class Reason(BaseModel):
        why: str

    got: list[Any] = []
    other = Agent("b", model=ScriptedModel([[assistant_message("b")]]))
    way = handoff(other, on_handoff=lambda context, reason: got.append(reason), input_type=Reason)
    calls = [call("transfer_to_b", "1", why="lost"), call("transfer_to_b", "2", why="again")]
    result = await Runner.run(Agent("a", handoffs=[way], model=ScriptedModel([calls])), "q")
    assert got == [Reason(why="lost")]
    assert [item.type for item in result.new_items] == [
        "handoff_call_item",
        "handoff_call_item",
        "tool_call_output_item",
        "handoff_output_item",
        "message_output_item",
    ]
    assert result.new_items[3].target_agent is other


async def test_a_filter_sees_and_changes_what_the_next_agent_is_shown() -> None:
    seen: list[HandoffInputData] = []

    def edit(data: HandoffInputData) -> HandoffInputData:
        seen.append(data)
        return data.clone(input_history=({"role": "user", "content": "short"},), input_items=data.new_items[-1:])

    model = ScriptedModel([[call("transfer_to_b", "1")], [assistant_message("b")]])
    other = Agent("b", model=model)
    result = await Runner.run(Agent("a", handoffs=[handoff(other, input_filter=edit)], model=model), "long story")
    assert seen[0].input_history == "long story"
    assert [item.type for item in seen[0].new_items] == ["handoff_call_item", "handoff_output_item"]
    assert model.last_call.input == [{"role": "user", "content": "short"}, result.new_items[1].raw_item]
    assert len(result.new_items) == 3


async def test_an_agent_without_a_declared_handoff_runs_but_cannot_be_saved() -> None:
    hidden = Agent("hidden", model=ScriptedModel([[assistant_message("here")]]))
    way = handoff(hidden, tool_name_override="go")
    way.agent = None
    agent = Agent("a", handoffs=[way], model=ScriptedModel([[call("go", "1")]]))
    result = await Runner.run(agent, "q")
    assert (result.final_output, result.last_agent) == ("here", hidden)
    with pytest.raises(UserError, match="hidden"):
        result.to_state().to_json()


async def test_two_tools_of_one_name_are_a_warning_or_an_error() -> None:
    @function_tool(name_override="same")
    async def one() -> str:
        return "one"

    @function_tool(name_override="same")
    async def two() -> str:
        return "two"

    agent = Agent("a", tools=[one, two], model=ScriptedModel([[call("same", "1")], [assistant_message("ok")]]))
    with pytest.warns(UserWarning, match="same"):
        result = await Runner.run(agent, "q")
    assert result.new_items[1].output == "one"
    assert len(agent.model.first_call.tools) == 1
    with pytest.raises(UserError, match="same"):
        await Runner.run(agent, "q", run_config=RunConfig(tool_name_collision_policy="error"))


async def test_the_runs_settings_and_model_count_before_the_agents() -> None:
    model = ScriptedModel([[assistant_message("ok")]])
    agent = Agent("a", model=ScriptedModel([]), model_settings=ModelSettings(temperature=0.1, top_p=0.5))
    config = {"model": model, "model_settings": {"temperature": 0.9}}
    await Runner.run(agent, "q", run_config=config)
    assert model.first_call.model_settings == ModelSettings(temperature=0.9, top_p=0.5)
    with pytest.raises(UserError, match="colour"):
        await Runner.run(agent, "q", run_config={"colour": 1})


async def test_ids_of_reasoning_are_omitted_by_policy() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}

    @function_tool
    async def free() -> str:
        return "x"

    model, session = ScriptedModel([[thought, call("free", "1")], [assistant_message("ok")]]), MinimalSession()
    config = RunConfig(reasoning_item_id_policy="omit")
    result = await Runner.run(Agent("a", tools=[free], model=model), "q", session=session, run_config=config)
    assert model.last_call.input[1] == {"type": "reasoning", "summary": []} == session.items[1]
    assert result.new_items[0].raw_item.id == "rs_1"


async def test_every_call_has_a_key_of_its_own() -> None:
    keys: list[str] = []

    @function_tool
    async def keyed(context: ToolContext[Any]) -> str:
        keys.append(context.idempotency_key)
        return "x"

    for _ in range(2):
        steps = [[call("keyed", "1"), call("keyed", "2")], [assistant_message("ok")]]
        await Runner.run(Agent("a", tools=[keyed], model=ScriptedModel(steps)), "q")
    assert len(set(keys)) == 4


def test_hooks_are_classes_with_and_without_type_arguments() -> None:
    for base in (standfast.RunHooks, standfast.AgentHooks):
        assert issubclass(type("Plain", (base,), {}), base)

        class Typed(base[dict[str, Any]]):  # type: ignore[valid-type,misc]
            pass

        assert isinstance(Typed(), base)
