"""Runs that openai-agents paused are resumed here to the end that openai-agents reaches with them."""

import copy
import dataclasses
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import agents
import pytest

import standfast
from golden.openai_agents.paused_runs import PROGRAMS, Scripts, decide, describe, make_tools, resume_to_the_end
from standfast import RunState, SQLiteSession
from standfast.agents.errors import AgentMissing
from standfast.runs.core.openai_agents.snapshot import NotRepresentable
from standfast.runs.core.serialization import UnreadableState

GOLDEN = Path(__file__).parents[1] / "golden" / "openai_agents"
PUBLISHED = ["1.0", "1.1", "1.2", "1.4", "1.5", "1.6", *(f"1.{n}" for n in (9, 10, 11, 12, 13, 15, 16, 17, 18, 21))]


@cache
def read_runs(schema: str) -> dict[str, Any]:
    runs: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / f"paused_runs_{schema}.json.gz").read_bytes()))["runs"]
    return runs


def load(schema: str, name: str) -> Any:
    return copy.deepcopy(read_runs(schema)[name])


# Schema 1.0 has no runs of nested agents.
WITH_NESTED_RUNS = ("nested", "nested_rejected", "nested_twice", "nested_decided", "chain")
CASES = [
    (schema, name)
    for schema in PUBLISHED
    for name, run in read_runs(schema).items()
    if "resumed" in run and not (schema == "1.0" and name in WITH_NESTED_RUNS)
]


def comparable(done: dict[str, Any]) -> dict[str, Any]:
    """What a run did, without the notation of items and without approval items, whose order differs."""
    kept = {name: value for name, value in done.items() if name not in ("items", "agents", "input_list", "usage")}
    items = [
        (kind, agent) for kind, agent in zip(done["items"], done["agents"], strict=True) if kind != "tool_approval_item"
    ]
    return kept | {"items": items}


@pytest.mark.parametrize(("schema", "name"), CASES)
async def test_a_paused_run_is_resumed_to_the_same_end(schema: str, name: str) -> None:
    golden = load(schema, name)
    build, program = PROGRAMS[name]
    used, made = dict(golden["used"]), list[str]()
    scripts = Scripts(standfast, program.scripts, used)
    agent = build(standfast, scripts, make_tools(standfast, made))
    session = SQLiteSession("ann") if program.session else None
    if session is not None:
        await session.add_items(golden["before"]["session"])
    state = await RunState.from_string(agent, json.dumps(golden["state"]))
    # What was loaded can be saved and loaded as any other run.
    state = await RunState.from_string(agent, state.to_string())
    result, paused_for = await resume_to_the_end(standfast, agent, state, program, session=session)
    done = {**describe(result, scripts, made), "paused_for": paused_for}
    if session is not None:
        done["session"] = await session.get_items()
        session.close()
    # Before schema 1.21 openai-agents loses the usage of nested runs when it resumes them.
    requests = len(golden["before"]["requests"]) + len(done["requests"])
    assert done["usage"] == [requests, 10 * requests, 5 * requests, 15 * requests]
    expected = golden["resumed"]
    if expected["final_output"] is None:  # openai-agents 0.20.0 does not get to the end of "nested_twice"
        expected = load("1.21", name)["resumed"]
    assert comparable(json.loads(json.dumps(done))) == comparable(expected)


async def test_a_nested_run_that_was_not_saved_begins_again_and_asks_again() -> None:
    golden = load("1.0", "nested")
    build, program = PROGRAMS["nested"]
    scripts, made = Scripts(standfast, program.scripts, {"front": 1}), list[str]()
    agent = build(standfast, scripts, make_tools(standfast, made))
    with pytest.warns(UserWarning, match=r"'ask_worker' calls was not saved: it begins again"):
        state = await RunState.from_json(agent, golden["state"])
    assert state.get_interruptions() == []
    paused = await standfast.Runner.run(agent, state)
    assert [item.tool_name for item in paused.interruptions] == ["pay"]
    state = paused.to_state()
    state.approve(paused.interruptions[0])
    result = await standfast.Runner.run(agent, state)
    assert (result.final_output, made) == ("done", ["pay 5"])


@pytest.mark.parametrize("schema", PUBLISHED)
async def test_a_completed_run_is_loaded_and_asks_the_model_again(schema: str) -> None:
    golden = load(schema, "plain")
    build, program = PROGRAMS["plain"]
    scripts = Scripts(standfast, {"front": [*program.scripts["front"], program.scripts["front"][-1]]}, golden["used"])
    agent = build(standfast, scripts, make_tools(standfast, []))
    result = await standfast.Runner.run(agent, await RunState.from_json(agent, golden["state"]))
    assert result.final_output == "done"
    assert [item.type for item in result.new_items].count("message_output_item") == 2


async def load_changed(**changes: Any) -> RunState[Any, Any]:
    build, program = PROGRAMS["approval"]
    agent = build(standfast, Scripts(standfast, program.scripts), make_tools(standfast, []))
    return await RunState.from_json(agent, load("1.21", "approval")["state"] | changes)


@pytest.mark.parametrize("version", ["1.22", "2.0", "0.9", "1", None, "one"])
async def test_versions_that_are_not_known_are_refused_and_the_error_says_what_to_do(version: Any) -> None:
    with pytest.raises(UnreadableState, match=r"openai-agents wrote it .* Resume it with openai-agents") as raised:
        await load_changed(**{"$schemaVersion": version})
    assert raised.value.path == "$schemaVersion"


@pytest.mark.parametrize("version", [f"1.{minor}" for minor in range(22)])
async def test_every_version_between_is_read(version: str) -> None:
    state = await load_changed(**{"$schemaVersion": version})
    assert [item.tool_name for item in state.get_interruptions()] == ["pay"]


UNPUBLISHED = {"1.3": ("1.2", "1.4"), "1.7": ("1.6", "1.9"), "1.8": ("1.6", "1.9"), "1.14": ("1.13", "1.15")}
UNPUBLISHED |= {"1.19": ("1.18", "1.21"), "1.20": ("1.18", "1.21")}
BETWEEN = [(schema, written) for schema, neighbours in UNPUBLISHED.items() for written in neighbours]


@pytest.mark.parametrize("name", ["approval", "nested", "handoff", "session"])
@pytest.mark.parametrize(("schema", "written"), BETWEEN)
async def test_versions_that_no_release_writes_are_resumed_as_their_neighbours(
    schema: str, written: str, name: str
) -> None:
    """No release on PyPI writes these schemas, so there can be no golden files of them.

    0.10.1 writes 1.2 and 0.10.2 1.4; 0.13.6 writes 1.6 and 0.14.0 1.9; 0.19.4 writes 1.13 and 0.20.0 1.15; 0.23.1
    writes 1.18 and 0.24.0 1.21. Programs that were installed from the repository may have written them: runs of the
    releases before and after are resumed under these numbers.
    """
    golden = load(written, name)
    build, program = PROGRAMS[name]
    scripts, made = Scripts(standfast, program.scripts, dict(golden["used"])), list[str]()
    agent = build(standfast, scripts, make_tools(standfast, made))
    session = SQLiteSession("ann") if program.session else None
    if session is not None:
        await session.add_items(golden["before"]["session"])
    state = await RunState.from_json(agent, golden["state"] | {"$schemaVersion": schema})
    result, _ = await resume_to_the_end(standfast, agent, state, program, session=session)
    assert (result.final_output, made) == (golden["resumed"]["final_output"], golden["resumed"]["made"])
    if session is not None:
        session.close()


async def test_what_cannot_be_carried_on_is_named() -> None:
    item = {"type": "tool_call_item", "raw_item": {"type": "shell_call", "call_id": "s1"}, "agent": {"name": "front"}}
    with pytest.raises(UnreadableState, match="'root' has no tool for its shell_call"):
        await load_changed(generated_items=[item], session_items=[item])
    with pytest.raises(UnreadableState, match="sandbox of openai-agents"):
        await load_changed(sandbox={"backend_id": "docker"})
    with pytest.raises(AgentMissing, match="billing"):
        await load_changed(current_agent={"name": "billing"})
    with pytest.raises(UnreadableState, match="damaged"):
        await load_changed(generated_items=[7], session_items=[7])
    with pytest.warns(UserWarning, match="prompt cache key"):
        await load_changed(generated_prompt_cache_key="k")


async def test_ambiguous_agents_of_the_same_name_are_refused() -> None:
    saved = load("1.21", "approval")["state"]
    tools = make_tools(standfast, [])
    twins = [standfast.Agent(name="front", tools=[tools["pay"]], instructions=text) for text in ("a", "b")]
    root = standfast.Agent(name="root", handoffs=twins)
    with pytest.raises(UnreadableState, match="2 agents are called 'front'"):
        await RunState.from_json(root, saved)


async def test_calls_have_the_same_keys_however_often_the_run_is_loaded() -> None:
    first, second = await load_changed(), await load_changed(current_turn=7)
    assert first.run_id == second.run_id


async def test_the_context_of_a_custom_type_is_restored_by_the_deserializer() -> None:
    build, program = PROGRAMS["approval"]
    agent = build(standfast, Scripts(standfast, program.scripts), make_tools(standfast, []))
    saved = load("1.21", "approval")["state"]
    meta = {"original_type": "dataclass", "serialized_via": "asdict", "requires_deserializer": True, "omitted": False}
    saved["context"] |= {"context": {"a": 1}, "context_meta": meta | {"class_path": "app:Context"}}
    state = await RunState.from_json(agent, saved, context_deserializer=lambda data: ("made", data["a"]))
    assert state.context.context == ("made", 1)


# --- the other way --------------------------------------------------------------------------------


async def pause_here(name: str, session: Any) -> tuple[RunState[Any, Any], Scripts]:
    """Run a program until it pauses and its first decisions are made."""
    build, program = PROGRAMS[name]
    scripts = Scripts(standfast, program.scripts)
    agent = build(standfast, scripts, make_tools(standfast, []))
    config = standfast.RunConfig(**program.config)
    result = await standfast.Runner.run(
        agent, program.input, context=program.context, session=session, run_config=config, **program.settings
    )
    state = result.to_state()
    for words in program.decisions[: program.decided]:
        decide(state, words)
    return state, scripts


CANNOT_GO_BACK = ("namesakes", "added_input", "always", "never")
EXPORTABLE = [name for name, (_, program) in PROGRAMS.items() if program.decisions and name not in CANNOT_GO_BACK]


@pytest.mark.parametrize("name", EXPORTABLE)
async def test_openai_agents_resumes_what_was_paused_here(name: str) -> None:
    program, expected = PROGRAMS[name][1], load("1.21", name)["resumed"]
    earlier = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "yes"}]
    here = SQLiteSession("ann") if program.session else None
    if here is not None:
        await here.add_items(earlier)
    state, paused = await pause_here(name, here)
    saved = json.loads(json.dumps(await state.to_openai_agents_json(session=here)))
    scripts, made = Scripts(agents, program.scripts, paused.used), list[str]()
    agent = PROGRAMS[name][0](agents, scripts, make_tools(agents, made))
    there = agents.SQLiteSession("ann") if here is not None else None
    if here is not None and there is not None:
        await there.add_items(await here.get_items())  # type: ignore[arg-type]
        here.close()
    untraced = dataclasses.replace(program, config=program.config | {"tracing_disabled": True})
    loaded = await agents.RunState.from_json(agent, saved)
    result, paused_for = await resume_to_the_end(agents, agent, loaded, untraced, session=there)
    done = json.loads(json.dumps({**describe(result, scripts, made), "paused_for": paused_for}))
    for part in ("final_output", "last_agent", "outputs", "made", "paused_for", "context", "guardrails"):
        assert done[part] == expected[part]
    if there is not None:
        assert [item.get("type") for item in await there.get_items()] == [
            item.get("type") for item in expected["session"]
        ]
        there.close()


async def test_openai_agents_asks_about_later_calls_of_a_tool_that_is_always_approved() -> None:
    state, paused = await pause_here("always", None)
    scripts, made = Scripts(agents, PROGRAMS["always"][1].scripts, paused.used), list[str]()
    agent = PROGRAMS["always"][0](agents, scripts, make_tools(agents, made))
    loaded = await agents.RunState.from_json(agent, await state.to_openai_agents_json())
    result = await agents.Runner.run(agent, loaded, run_config=agents.RunConfig(tracing_disabled=True))
    assert ([item.call_id for item in result.interruptions], made) == (["c2"], ["pay 5"])


async def test_what_openai_agents_cannot_represent_is_named() -> None:
    state, _ = await pause_here("approval", None)
    state.approve(state.get_interruptions()[0], arguments={"amount": 6})
    with pytest.raises(NotRepresentable, match="arguments of an approved call were edited"):
        await state.to_openai_agents_json()
    state, _ = await pause_here("approval", None)
    state.add_input("and hurry")
    with pytest.raises(NotRepresentable, match="input that was added"):
        await state.to_openai_agents_json()
    state, _ = await pause_here("namesakes", None)
    with pytest.raises(NotRepresentable, match="several agents are called 'helper'"):
        await state.to_openai_agents_json()
