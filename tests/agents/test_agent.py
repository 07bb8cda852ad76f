"""Agents: their fields, instructions, prompts, and agents as tools."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import standfast
from standfast import (
    Agent,
    AgentBase,
    AgentHooks,
    AgentsException,
    InvalidDeclaration,
    ModelBehaviorError,
    ModelSettings,
    RunContextWrapper,
    RunHooks,
    StandfastError,
    StopAtTools,
    ToolOriginType,
    UserError,
)
from standfast.agents.agent_tool import AgentTool

CONTEXT = RunContextWrapper("ann")


def test_positional_fields_keep_their_order() -> None:
    assert ", ".join(inspect.signature(AgentBase).parameters) == (
        "name, handoff_description, tools, mcp_servers, mcp_config"
    )
    assert ", ".join(inspect.signature(Agent).parameters) == (
        "name, handoff_description, tools, mcp_servers, mcp_config, instructions, prompt, handoffs, model, "
        "model_settings, input_guardrails, output_guardrails, output_type, hooks, tool_use_behavior, reset_tool_choice"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 3},
        {"handoff_description": 3},
        {"tools": ()},
        {"mcp_servers": None},
        {"mcp_config": None},
        {"instructions": 3},
        {"prompt": "id"},
        {"handoffs": None},
        {"model": 3},
        {"model_settings": 3},
        {"model_settings": {"heat": 1}},
        {"input_guardrails": None},
        {"output_guardrails": None},
        {"output_type": 3},
        {"hooks": 3},
        {"tool_use_behavior": "guess"},
        {"tool_use_behavior": {"stop_at": []}},
        {"reset_tool_choice": 1},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_is_named_in_the_error(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidDeclaration, match="setting" if name == "model_settings" else name) as caught:
        Agent(**{"name": "a", **wrong})
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, UserError)


def test_all_fields_accept_their_documented_types() -> None:
    agent = Agent(
        "a",
        instructions=lambda context, agent: "hi",
        prompt={"id": "p"},
        model="gpt",
        model_settings={"temperature": 0.5},  # type: ignore[arg-type]
        output_type=list[int],  # type: ignore[arg-type]
        hooks=AgentHooks(),
        tool_use_behavior=StopAtTools(stop_at_tool_names=["x"]),
    )
    assert agent.model_settings == ModelSettings(temperature=0.5)


def test_agents_compare_by_identity() -> None:
    assert Agent("a") != Agent("a")
    assert len({Agent("a"), Agent("a")}) == 2


def test_the_repr_of_agents_in_a_cycle_is_finite() -> None:
    a, b = Agent("a"), Agent("b")
    a.handoffs.append(b)
    b.handoffs.append(a)
    assert repr(a) == "Agent(name='a')"


def test_a_clone_shares_what_is_not_replaced() -> None:
    agent = Agent("a", instructions="hi", tools=[])
    clone = agent.clone(name="b")
    assert (clone.name, clone.instructions, clone.tools is agent.tools) == ("b", "hi", True)
    with pytest.raises(InvalidDeclaration, match="unknown fields: colour"):
        agent.clone(colour="red")


async def test_instructions_are_a_string_or_a_function() -> None:
    async def later(context: RunContextWrapper[str], agent: Agent[str]) -> str:
        return f"{agent.name} helps {context.context}"

    assert await Agent("a").get_system_prompt(CONTEXT) is None
    assert await Agent("a", instructions="hi").get_system_prompt(CONTEXT) == "hi"
    assert await Agent("a", instructions=lambda c, a: a.name).get_system_prompt(CONTEXT) == "a"
    assert await Agent("a", instructions=later).get_system_prompt(CONTEXT) == "a helps ann"


@pytest.mark.parametrize("function", [lambda: "", lambda c: "", lambda a, b, c: ""])
async def test_instructions_take_the_context_and_the_agent(function: Any) -> None:
    with pytest.raises(TypeError, match=r"Agent 'a': instructions must take \(context, agent\)"):
        await Agent("a", instructions=function).get_system_prompt(CONTEXT)


async def test_a_prompt_is_a_dict_or_a_function() -> None:
    expected = {"id": "p", "version": None, "variables": {"user": "ann"}}

    async def later(data: Any) -> Any:
        return {"id": "p", "variables": {"user": data.context.context}}

    assert await Agent("a").get_prompt(CONTEXT) is None
    assert await Agent("a", prompt={"id": "p", "variables": {"user": "ann"}}).get_prompt(CONTEXT) == expected
    assert await Agent("a", prompt=later).get_prompt(CONTEXT) == expected
    with pytest.raises(UserError, match="prompt of agent 'a'"):
        await Agent("a", prompt=lambda data: "p").get_prompt(CONTEXT)  # type: ignore[arg-type, return-value]


async def test_hooks_do_nothing_by_default() -> None:
    for hooks in (RunHooks(), AgentHooks()):
        for name, method in inspect.getmembers(hooks, inspect.iscoroutinefunction):
            assert name.startswith("on_")
            assert await method(*[None] * len(inspect.signature(method).parameters)) is None


def nested(tool: Any) -> AgentTool:
    assert isinstance(tool.agent_tool, AgentTool)
    return tool.agent_tool


async def test_an_agent_tool_takes_a_string_by_default() -> None:
    agent = Agent("Word Smith")
    tool = agent.as_tool(None, "Writes.", max_turns=3)
    assert (tool.name, tool.description, tool.strict_json_schema) == ("word_smith", "Writes.", True)
    assert tool.params_json_schema["required"] == ["input"]
    assert tool.origin is not None
    assert (tool.origin.type, tool.origin.agent_name) == (ToolOriginType.AGENT_AS_TOOL, "Word Smith")
    assert (nested(tool).agent, nested(tool).max_turns) == (agent, 3)
    built = await nested(tool).build_nested_input('{"input": "a poem"}')
    assert (built.input, built.tool_input) == ("a poem", {"input": "a poem"})


@pytest.mark.parametrize("arguments", ["", "{", "[]", "{}", '{"input": 3}'])
async def test_invalid_arguments_of_an_agent_tool_are_rejected(arguments: str) -> None:
    with pytest.raises(ModelBehaviorError, match="invalid arguments for tool smith"):
        await nested(Agent("a").as_tool("smith", "")).build_nested_input(arguments)


class Poem(BaseModel):
    about: str
    lines: int | None = None


async def test_an_agent_tool_can_take_the_fields_of_a_type() -> None:
    tool = Agent("a").as_tool("smith", "", parameters=Poem)
    assert tool.params_json_schema["required"] == ["about", "lines"]
    built = await nested(tool).build_nested_input('{"about": "rain"}')
    assert built.tool_input == {"about": "rain", "lines": None}
    assert json.dumps(built.tool_input) in built.input
    with pytest.raises(ModelBehaviorError, match="about: Field required"):
        await nested(tool).build_nested_input("{}")


async def test_the_nested_input_can_include_the_schema() -> None:
    tool = Agent("a").as_tool("smith", "", parameters=Poem, include_input_schema=True)
    assert '"title": "About"' in (await nested(tool).build_nested_input('{"about": "rain"}')).input


async def test_an_input_builder_builds_the_nested_input() -> None:
    async def build(options: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": options["params"]["about"]}]

    tool = Agent("a").as_tool("smith", "", parameters=Poem, input_builder=build)
    assert (await nested(tool).build_nested_input('{"about": "rain"}')).input == [{"role": "user", "content": "rain"}]
    wrong = Agent("a").as_tool("smith", "", parameters=Poem, input_builder=lambda options: 3)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match="input_builder of smith"):
        await nested(wrong).build_nested_input('{"about": "rain"}')


def test_every_error_has_a_unique_code() -> None:
    def subclasses(kind: type[Any]) -> list[type[Any]]:
        return [kind, *(each for child in kind.__subclasses__() for each in subclasses(child))]

    errors = {kind for kind in subclasses(AgentsException) if kind.__module__.startswith("standfast")}
    assert len({kind.code for kind in errors}) == len(errors)
    assert issubclass(AgentsException, StandfastError)


def test_declaring_an_agent_needs_no_pydantic() -> None:
    code = (
        "import sys, standfast; a = standfast.Agent('a'); "
        "standfast.Agent('b', tools=[a.as_tool('t', '')], handoffs=[standfast.handoff(a)]); "
        "print([name for name in ('pydantic', 'openai') if name in sys.modules])"
    )
    env = {"PYTHONPATH": str(Path(standfast.__file__).parent.parent)}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert process.stdout == "[]\n"
