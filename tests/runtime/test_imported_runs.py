"""A run that a program has saved becomes a durable one, with the variables and files of its Python."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from factories.runtime import reply, tool_calls, wait_for
from standfast import (
    Agent,
    EncryptedSession,
    RunContextWrapper,
    Runner,
    RunState,
    Runtime,
    function_tool,
    open_store,
    python_tool,
)
from standfast.base.errors import InvalidInput, NotFound, Unsupported
from standfast.testing import ScriptedModel
from standfast.workers import PoolConfig, PythonSessions, SessionPool, WorkspaceRefused

MAKE = "rows = [1, 2]; same = rows; _ = open('rows.csv', 'w').write('1,2')"
LOOK = "rows.append(3); print(rows, same is rows, open('rows.csv').read())"
SEEN = "[1, 2, 3] True 1,2"
KEY = "k" * 32


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=4)) as pool:
        yield pool


def analyst(python: Any, *codes: str) -> Agent[Any]:
    """An agent whose first cell runs at once, and whose others need approval."""
    steps = [
        tool_calls(("ask_python" if number else "run_python", {"code": code}, f"c{number}"))
        for number, code in enumerate(codes)
    ]
    tools = [python_tool(python), python_tool(python, name="ask_python", needs_approval=True)]
    return Agent("analyst", tools=tools, model=ScriptedModel([*steps, reply("done")]))


async def pause(sessions: PythonSessions, **options: Any) -> RunState[Any]:
    return (await Runner.run(analyst(sessions, MAKE, LOOK), "go", **options)).to_state()


def resumed(python: Any) -> Agent[Any]:
    agent = analyst(python)
    agent.model = ScriptedModel([reply("done")])
    return agent


async def finish(runtime: Runtime, run: Any) -> str:
    """Approve the waiting call, let the run end, and return the last output."""
    assert (await wait_for(run.wait())).status == "waiting"
    [approval] = await runtime.approvals(run_id=run.id)
    await runtime.decide(approval.id, "approve")
    outcome = await wait_for(run.wait())
    assert outcome.status == "completed", outcome
    outputs = [
        item["output"]
        async for event in run.events()
        for item in event.data.get("items", ())
        if item.get("type") == "function_call_output"
    ]
    return str(outputs[-1]).splitlines()[-1]


@pytest.mark.parametrize("how", ["object", "embedded", "other store"])
async def test_a_saved_run_continues_as_a_durable_one(
    shared_url: str, tmp_path: Path, pool: SessionPool, how: str
) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'program.db'}") as store:
        sessions = PythonSessions(pool, store=store)
        state = await pause(sessions)
        agent = resumed(PythonSessions(pool, store=store) if how == "other store" else pool)
        if how != "object":
            saved = await state.to_string(embed_workspace=True) if how == "embedded" else state.to_string()
            sessions.close()
            state = await RunState.from_string(agent, saved)
        async with Runtime.open(shared_url, agents=[agent]) as runtime:
            run = await runtime.start("analyst", state)
            assert run.id == state.run_id
            assert await finish(runtime, run) == SEEN
            versions = [one async for one in (await runtime.workspace(run.id)).history()]
            assert [(one.version, one.call_id, one.run_id) for one in versions] == [
                (1, "c0", run.id),
                (2, "c1", run.id),
            ]
        sessions.close()


async def test_the_same_state_is_the_same_run(shared_url: str, pool: SessionPool) -> None:
    async with open_store("memory://") as store, Runtime.open(shared_url, agents=[resumed(pool)]) as runtime:
        sessions = PythonSessions(pool, store=store)
        state = await pause(sessions)
        first = await runtime.start("analyst", state)
        again = await runtime.start("analyst", await RunState.from_json(state.agent, state.to_json()))
        assert first.id == again.id
        assert len(await runtime.runs()) == 1
        [question] = state.get_interruptions()
        state.approve(question)
        with pytest.raises(InvalidInput, match=r"resume\(\) or fork\(\)"):
            await runtime.start("analyst", state)
        sessions.close()


async def test_decisions_context_and_usage_come_along(shared_url: str) -> None:
    seen: list[Any] = []

    @function_tool(needs_approval=True)
    async def pay(context: RunContextWrapper[Any], amount: int) -> str:
        seen.append((context.context, amount))
        return "paid"

    agent = Agent("payer", tools=[pay], model=ScriptedModel([tool_calls(("pay", {"amount": 5}, "c")), reply("done")]))
    result = await Runner.run(agent, "go", context={"user": 7})
    state = result.to_state()
    state.approve(state.get_interruptions()[0], arguments={"amount": 3})
    requests = state.context.usage.requests
    async with Runtime.open(shared_url, agents=[agent]) as runtime:
        run = await runtime.start("payer", state)
        outcome = await wait_for(run.wait())
        assert (outcome.status, outcome.final_output) == ("completed", "done")
        assert seen == [({"user": 7}, 3)]
        assert (await runtime.state(run.id)).context.usage.requests == requests + 1


async def test_a_run_of_a_session_continues_in_it(shared_url: str, pool: SessionPool) -> None:
    async with Runtime.open(shared_url, agents=[resumed(pool)]) as runtime:
        sessions = PythonSessions(pool, store=runtime.store)
        state = await pause(sessions, session=runtime.store.session("talk"))
        sessions.close()
        run = await runtime.start("analyst", state)
        assert await finish(runtime, run) == SEEN
        assert (await run.info()).session_id == "talk"
        items = await runtime.store.session("talk").get_items()
        assert [item.get("type") or item.get("role") for item in items] == [
            "user", "function_call", "function_call_output", "function_call", "function_call_output", "message"
        ]  # fmt: skip


async def test_a_run_whose_session_is_elsewhere_is_refused(shared_url: str, pool: SessionPool) -> None:
    async with open_store("memory://") as store, Runtime.open(shared_url, agents=[resumed(pool)]) as runtime:
        sessions = PythonSessions(pool, store=store)
        state = await pause(sessions, session=store.session("talk"))
        with pytest.raises(InvalidInput, match="not in this store"):
            await runtime.start("analyst", state)
        assert await runtime.runs() == []
        sessions.close()


@pytest.mark.filterwarnings("ignore:the variables and files")
async def test_a_run_without_its_variables_is_refused_unless_that_is_asked_for(
    shared_url: str, pool: SessionPool
) -> None:
    agent = resumed(pool)
    async with open_store("memory://") as store, Runtime.open(shared_url, agents=[agent]) as runtime:
        sessions = PythonSessions(pool, store=store)
        saved = (await pause(sessions)).to_json()
        sessions.close()
        with pytest.raises(Unsupported, match="embed_workspace=True"):
            await runtime.start("analyst", await RunState.from_json(agent, saved))
        assert await runtime.runs() == []
        run = await runtime.start("analyst", await RunState.from_json(agent, saved, tolerate=["workspace"]))
        assert "NameError" in await finish(runtime, run)


async def test_an_encrypted_workspace_is_not_imported_in_clear(tmp_path: Path, pool: SessionPool) -> None:
    agent = resumed(pool)
    async with open_store("memory://") as scratch, open_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        sessions = PythonSessions(pool, store=scratch)
        state = await pause(sessions, session=EncryptedSession("talk", store.session("talk"), KEY))
        saved = await state.to_json(embed_workspace=True)
        sessions.close()
        async with Runtime.open(store, agents=[agent], encryption_key=KEY) as runtime:
            with pytest.warns(UserWarning, match="encryption_key="):
                locked = await RunState.from_json(agent, saved)
            with pytest.raises(WorkspaceRefused, match="encryption_key="):
                await runtime.start("analyst", locked)
            run = await runtime.start("analyst", await RunState.from_json(agent, saved, encryption_key=KEY))
            assert await finish(runtime, run) == SEEN
    async with Runtime.open(f"sqlite:///{tmp_path / 'b.db'}", agents=[agent]) as runtime:
        assert await runtime.runs() == []


async def test_a_durable_run_moves_to_another_store(tmp_path: Path, shared_url: str, pool: SessionPool) -> None:
    agent = analyst(pool, MAKE, LOOK)
    async with Runtime.open(f"sqlite:///{tmp_path / 'here.db'}", agents=[agent]) as here:
        run = await here.start("analyst", "go")
        assert (await wait_for(run.wait())).status == "waiting"
        state = await here.state(run.id)
        async with Runtime.open(shared_url, agents=[agent]) as there:
            moved = await there.start("analyst", state)
            assert await finish(there, moved) == SEEN
        with pytest.raises(InvalidInput, match=r"fork\(\)"):
            await here.start("analyst", state)


async def test_a_state_that_refers_to_the_workspace_of_another_conversation_is_refused(
    shared_url: str, pool: SessionPool
) -> None:
    async with open_store(shared_url) as store:
        sessions = PythonSessions(pool, store=store)
        other = store.session("bob", owner="bob")
        await other.add_items([{"role": "user", "content": "hi"}])
        await sessions.run("secret = 1", key=other.conversation_key)
        await sessions.save(other.conversation_key)
        found = await store.backend.get_workspace("session:bob")
        assert found is not None
        state = await pause(sessions)
        forged = json.loads(state.to_string())
        reference = forged["run"]["workspace"]
        forged["run"]["workspace"] = {**reference, "key": found.key, "workspace_id": found.workspace_id}
        python = PythonSessions(pool, store=store)
        async with Runtime.open(shared_url, agents=[resumed(python)]) as runtime:
            saved = await RunState.from_string(resumed(python), json.dumps(forged))
            with pytest.raises(WorkspaceRefused, match="another conversation") as raised:
                await runtime.start("analyst", saved)
            assert raised.value.kind == "other-owner"
            with pytest.raises(NotFound):
                await runtime.run(state.data.run_id)
