"""Saved runs: what they keep, what they refuse, and how they find their agents."""

import datetime
import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel

from factories.runs import approve_all
from standfast import (
    Agent,
    AgentChanged,
    AgentMissing,
    ModelBehaviorError,
    RunContextWrapper,
    Runner,
    RunState,
    UnknownVersion,
    UnreadableState,
    UserError,
    function_tool,
    handoff,
    register_context_codec,
    tool_namespace,
)
from standfast.base.collections import AppendOnlyList
from standfast.runs import CURRENT_SCHEMA_VERSION, SCHEMA_VERSION_SUMMARIES, SUPPORTED_SCHEMA_VERSIONS
from standfast.runs.core.context import ContextNotSaved
from standfast.runs.core.serialization import SavedRun
from standfast.runs.core.state import GuardrailRecord, ResponseRecord, TranscriptEntry
from standfast.testing import ScriptedModel, assistant_message, function_call

GOLDEN = Path(__file__).parent / "golden"


def call(name: str, call_id: str, **arguments: Any) -> Any:
    return function_call(name, arguments, call_id=call_id)


@function_tool(needs_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def payer(*steps: Any, **options: Any) -> Agent[Any]:
    return Agent("payer", tools=[pay], model=ScriptedModel(steps), **options)


async def paused(context: Any = None) -> tuple[Agent[Any], RunState[Any]]:
    agent = payer([call("pay", "1", amount=5)], [assistant_message("ok")])
    return agent, (await Runner.run(agent, "q", context=context)).to_state()


# --- versions -------------------------------------------------------------------------------------


def golden_agent() -> Agent[Any]:
    inner = Agent("worker", tools=[pay], model=ScriptedModel([[assistant_message("inner done")]]))
    script = ScriptedModel([[assistant_message("all done")]])
    tool = inner.as_tool("ask", "asks")
    helper = Agent("worker", instructions="help", tools=[pay, tool], model=script)
    return Agent("front", handoffs=[helper], model=script)


@pytest.mark.parametrize("version", ["1", "2", *sorted(SUPPORTED_SCHEMA_VERSIONS)])
async def test_every_supported_version_is_read_and_resumed_to_its_end(version: str) -> None:
    """Versions 1 and 2 were written without the minor number at first."""
    golden = version if "." in version else f"{version}.0"
    saved = json.loads((GOLDEN / f"run_state_{golden}.json").read_text())
    assert saved["$schemaVersion"] == golden
    saved["$schemaVersion"] = version
    agent = golden_agent()
    state = await RunState.from_json(agent, saved)
    assert state.to_json()["$schemaVersion"] == CURRENT_SCHEMA_VERSION
    assert [item.route for item in state.get_interruptions()] == [(), ("c2",)]
    first, second = state.get_interruptions()
    state.approve(first, arguments={"amount": 7})
    state.reject(second, rejection_message="not now")
    result = await Runner.run(agent, state)
    assert result.final_output == "all done"
    assert [item.output for item in result.new_items if item.type == "tool_call_output_item"] == [
        "paid 7",
        "inner done",
    ]


def without_prose(schema: Any) -> Any:
    """The schema without titles and descriptions: docstrings may change without a new version."""
    if isinstance(schema, list):
        return [without_prose(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    prose = {name for name in ("title", "description") if isinstance(schema.get(name), str)}
    return {name: without_prose(part) for name, part in schema.items() if name not in prose}


def test_the_shape_of_what_is_saved_changes_only_with_the_version() -> None:
    def hook(kind: Any) -> dict[str, Any]:
        assert issubclass(kind, AppendOnlyList)
        return {"type": "array", "items": {"$ref": f"#/$defs/{kind.item_type.__name__}"}}

    (out,), parts = msgspec.json.schema_components([SavedRun], schema_hook=hook)
    logs, more = msgspec.json.schema_components([TranscriptEntry, ResponseRecord, GuardrailRecord], schema_hook=hook)
    schema = without_prose(json.loads(json.dumps({"root": out, "parts": {**parts, **more}, "logs": logs})))
    known = json.loads((GOLDEN / f"schema_{CURRENT_SCHEMA_VERSION}.json").read_text())
    assert schema == known, "what is saved has changed: add an upgrade, a golden file and a schema of its own"


def test_every_version_has_a_summary() -> None:
    assert set(SCHEMA_VERSION_SUMMARIES) == set(SUPPORTED_SCHEMA_VERSIONS)
    assert all(SCHEMA_VERSION_SUMMARIES.values())


def test_versions_have_a_major_and_a_minor_number() -> None:
    assert all(re.fullmatch(r"[0-9]+\.[0-9]+", version) for version in SUPPORTED_SCHEMA_VERSIONS)
    newest = max(SUPPORTED_SCHEMA_VERSIONS, key=lambda version: tuple(map(int, version.split("."))))
    assert newest == CURRENT_SCHEMA_VERSION


@pytest.mark.parametrize("version", ["3", "0", "0.9", "999.0", "2.", "two"])
async def test_other_versions_are_refused_and_both_are_named(version: str) -> None:
    agent, state = await paused()
    saved = state.to_json() | {"$schemaVersion": version}
    with pytest.raises(UnknownVersion) as raised:
        await RunState.from_json(agent, saved)
    assert version in str(raised.value)
    assert CURRENT_SCHEMA_VERSION in str(raised.value)


async def test_invalid_saved_runs_are_refused_with_the_location() -> None:
    agent, state = await paused()
    good = state.to_json()
    for change, path in [
        (lambda saved: saved.pop("$schemaVersion"), "$schemaVersion"),
        (lambda saved: saved["run"].update(turn="one"), "turn"),
        (lambda saved: saved["run"].update(extra=1), "run"),
        (lambda saved: saved["run"]["calls"][0].update(id=7), "calls"),
        (lambda saved: saved["run"]["calls"][0].update(id="other"), "calls[0]"),
        (lambda saved: saved["run"]["calls"][0].update(position=99), "calls[0]"),
        (lambda saved: saved["run"]["calls"][0]["tool"].update(name="other"), "calls[0]"),
        (lambda saved: saved["run"].update(calls=saved["run"]["calls"] * 2), "calls[1]"),
        (lambda saved: saved["run"].update(calls=[]), "transcript[1]"),
        (lambda saved: saved["run"]["calls"][0].update(kind="mcp"), "calls[0]"),
        (lambda saved: saved["run"]["calls"][0].update(status="approved"), "calls[0]"),
        (lambda saved: saved["run"]["calls"][0].update(status="started"), "calls[0]"),
        (lambda saved: saved["run"]["calls"][0].update(status="failed"), "calls[0]"),
        (lambda saved: saved["run"]["calls"][0].update(status="done"), "calls[0]"),
        (lambda saved: saved["run"].update(turn=-5), "turn"),
        (lambda saved: saved["run"].update(responses=[]), "turn"),
        (lambda saved: saved["run"].update(answer={"text": "hi", "settled": True}), "calls"),
        (lambda saved: saved["run"].update(stored=99), "stored"),
        (lambda saved: saved["run"].update(view={"shown": [99], "since": 0}), "shown[0]"),
        (lambda saved: saved.update(agents=[]), "agents"),
    ]:
        saved = json.loads(json.dumps(good))
        change(saved)
        with pytest.raises(UnreadableState) as raised:
            await RunState.from_json(agent, saved)
        assert path in raised.value.path
    for text in ("[" * 100_000, '{"a": "\ud800"}', '{"a":' * 5000 + "1" + "}" * 5000):
        with pytest.raises(UnreadableState, match="it is not"):
            await RunState.from_string(agent, text)
    with pytest.raises(UnreadableState):
        await RunState.from_string(agent, "{")
    with pytest.raises(UnreadableState):
        await RunState.from_json(agent, [])  # type: ignore[arg-type]


async def test_a_call_without_approval_is_refused_also_by_the_other_name_of_its_tool() -> None:
    @function_tool(needs_approval=True, defer_loading=True)
    async def rare() -> str:
        raise AssertionError("nobody agreed to this")

    agent = Agent("a", tools=[rare], model=ScriptedModel([[call("rare", "1")]]))
    saved = (await Runner.run(agent, "q")).to_state().to_json()
    saved["run"]["calls"][0].update(status="approved", tool={"kind": "bare", "name": "rare"})
    with pytest.raises(UnreadableState, match="was not approved"):
        await RunState.from_json(agent, saved)


# --- identity -------------------------------------------------------------------------------------


def twins(*, third: bool = False, instructions: str = "B") -> Agent[Any]:
    a = Agent("worker", instructions="A", tools=[pay], model=ScriptedModel([[assistant_message("from a")]]))
    steps = [[call("pay", "1", amount=5)], [assistant_message("from b")]]
    b = Agent("worker", instructions=instructions, tools=[pay], model=ScriptedModel(steps))
    others = [Agent("worker", instructions="AB", tools=[pay])] if third else []
    front = Agent("front", handoffs=[a, *others, b], model=ScriptedModel([[call("go_b", "h")]]))
    front.handoffs[-1] = handoff(b, tool_name_override="go_b")
    return front


async def test_agents_of_one_name_are_distinguished() -> None:
    front = twins()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = (await Runner.run(front, "q")).to_state().to_string()
    state = await RunState.from_string(front, text)
    assert state.current_agent.instructions == "B"
    assert state.get_interruptions()[0].agent.instructions == "B"
    with pytest.raises(AgentChanged):
        await RunState.from_string(twins(third=True), text)
    with pytest.raises(AgentChanged, match=r"instructions.*tolerate=\['instructions'\]"):
        await RunState.from_string(twins(instructions="other"), text)
    assert await RunState.from_string(twins(instructions="other"), text, tolerate=["instructions"])
    with pytest.raises((AgentMissing, AgentChanged)):
        await RunState.from_string(Agent("front"), text)


async def test_a_state_of_another_agent_is_refused() -> None:
    _, state = await paused()
    with pytest.raises(AgentChanged, match="instructions"):
        await Runner.run(payer(instructions="Never pay."), state)


async def test_namespaced_tools_are_found_again() -> None:
    (inside,) = tool_namespace(name="bank", description="money", tools=[pay])
    step = function_call("pay", {"amount": 5}, call_id="1", namespace="bank")
    agent = Agent("a", tools=[inside], model=ScriptedModel([[step], [assistant_message("ok")]]))
    state = await RunState.from_string(agent, (await Runner.run(agent, "q")).to_state().to_string())
    (item,) = state.get_interruptions()
    assert (item.tool_lookup_key, item.qualified_name) == (("namespaced", "bank", "pay"), "bank.pay")
    state.approve(item)
    assert (await Runner.run(agent, state)).final_output == "ok"


# --- decisions ------------------------------------------------------------------------------------


async def test_decisions_and_their_messages_are_saved_with_the_run() -> None:
    agent, state = await paused()
    state.reject(state.get_interruptions()[0], rejection_message="too much")
    loaded = await RunState.from_string(agent, state.to_string())
    result = await Runner.run(agent, loaded)
    assert result.new_items[2].output == "too much"


async def test_a_decision_is_about_the_arguments_that_were_seen() -> None:
    agent, state = await paused()
    state.approve(state.get_interruptions()[0])
    saved = json.loads(state.to_string())
    saved["run"]["transcript"][1]["item"]["arguments"] = '{"amount": 5000}'
    tampered = await RunState.from_json(agent, saved)
    with pytest.raises(ModelBehaviorError, match="other arguments"):
        await Runner.run(agent, tampered)


async def test_a_decision_without_a_waiting_call_is_refused() -> None:
    _, state = await paused()
    item = state.get_interruptions()[0]
    _, other = await paused()
    item.raw_item["call_id"] = "elsewhere"
    with pytest.raises(UserError, match="elsewhere"):
        other.approve(item)
    with pytest.raises(UserError, match="JSON object"):
        state.approve(state.get_interruptions()[0], arguments="[1]")


async def test_a_saved_state_can_be_resumed_more_than_once_from_the_same_point() -> None:
    agent = payer([call("pay", "1", amount=5)], [assistant_message("one")], [assistant_message("two")])
    state = (await Runner.run(agent, "q")).to_state()
    approve_all(state)
    before = state.to_string()
    assert (await Runner.run(agent, state)).final_output == "one"
    assert (await Runner.run(agent, state)).final_output == "one"
    assert (await Runner.run(agent, await RunState.from_string(agent, before))).final_output == "two"


async def test_a_paused_run_without_a_decision_stays_paused() -> None:
    agent, state = await paused()
    result = await Runner.run(agent, state)
    assert len(result.interruptions) == 1
    assert len(agent.model.calls) == 1


async def test_added_input_precedes_the_next_model_call() -> None:
    agent, state = await paused()
    approve_all(state)
    state.add_input("and be quick")
    state = await RunState.from_string(agent, state.to_string())
    assert state.pending_input == [{"role": "user", "content": "and be quick"}]
    result = await Runner.run(agent, state)
    assert agent.model.last_call.input[-1] == {"role": "user", "content": "and be quick"}
    assert [item.type for item in result.new_items][3] == "input_item"
    with pytest.raises(UserError, match="ended"):
        result.to_state().add_input("more")


# --- context --------------------------------------------------------------------------------------


@register_context_codec
@dataclass
class Customer:
    name: str
    tags: list[str] = field(default_factory=list)


@register_context_codec
class Order(BaseModel):
    number: int


class Unknown:
    token = "secret"


@pytest.mark.parametrize("context", [{"a": {"b": [1, None, "x"]}}, Customer("ann", ["vip"]), Order(number=7), None])
async def test_contexts_come_back_as_they_were(context: Any) -> None:
    agent, state = await paused(context)
    loaded = await RunState.from_string(agent, state.to_string(strict_context=True), strict_context=True)
    assert loaded.context.context == context


async def test_a_snapshot_never_changes_afterwards() -> None:
    context = {"list": [1]}
    agent, state = await paused(context)
    saved = state.to_json()
    text = json.dumps(saved)
    context["list"].append(2)
    approve_all(state)
    agent.tools.clear()
    assert json.dumps(saved) == text


async def test_what_cannot_be_saved_is_named() -> None:
    context = {"keep": 1, "deep": {"when": datetime.datetime(2020, 1, 1)}}
    agent, state = await paused(context)
    with pytest.raises(ContextNotSaved, match=r"context\.deep\.when"):
        state.to_string(strict_context=True)
    with pytest.warns(UserWarning, match=r"context\.deep\.when"):
        text = state.to_string()
    assert (await RunState.from_string(agent, text)).context.context == {"keep": 1, "deep": {}}


async def test_objects_are_saved_only_by_choice() -> None:
    agent, state = await paused(Unknown())
    with pytest.warns(UserWarning, match="Unknown"):
        text = state.to_string()
    assert "secret" not in text
    with pytest.raises(ContextNotSaved, match="Unknown"):
        state.to_string(strict_context=True)
    chosen = state.to_string(context_serializer=lambda context: {"token": context.token})
    loaded = await RunState.from_string(agent, chosen, context_deserializer=lambda data: data["token"])
    assert loaded.context.context == "secret"
    with pytest.raises(ContextNotSaved):
        await RunState.from_string(agent, text, strict_context=True)
    override = await RunState.from_string(agent, text, context_override=Unknown())
    assert isinstance(override.context.context, Unknown)


async def test_usage_and_the_tool_use_tracker_are_kept() -> None:
    agent, state = await paused()
    loaded = await RunState.from_string(agent, state.to_string())
    assert loaded.context.usage == state.context.usage
    assert loaded.get_tool_use_tracker_snapshot() == {"root": ["pay"]}


def test_a_state_can_be_made_by_hand() -> None:
    state = RunState(RunContextWrapper({"a": 1}), "q", payer(), max_turns=3)
    assert json.loads(state.to_string())["run"]["input"] == "q"
