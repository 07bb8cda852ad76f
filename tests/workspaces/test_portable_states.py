"""A saved run has its variables and files: by reference to a store, or embedded."""

import base64
import json
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from factories.runtime import reply, tool_calls, wait_for
from standfast import Agent, EncryptedSession, Runner, RunState, Runtime, Store, WrongKey, open_store, python_tool
from standfast.base.errors import InvalidInput, Unsupported
from standfast.testing import ScriptedModel
from standfast.workers import PoolConfig, PythonSessions, SessionPool, WorkspaceRefused

MAKE = "rows = [1, 2]; same = rows; _ = open('rows.csv', 'w').write('1,2')"
LOOK = "rows.append(3); print(rows, same is rows, open('rows.csv').read())"
SEEN = "[1, 2, 3] True 1,2"


@pytest.fixture
async def pool() -> AsyncIterator[SessionPool]:
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=4)) as pool:
        yield pool


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(f"sqlite:///{tmp_path / 'app.db'}") as store:
        yield store


def analyst(python: SessionPool | PythonSessions, *codes: str) -> Agent[Any]:
    """An agent that runs these cells: the first without approval, the others with."""
    steps = [
        tool_calls(("ask_python" if number else "run_python", {"code": code}, f"c{number}"))
        for number, code in enumerate(codes)
    ]
    tools: list[Any] = [python_tool(python), python_tool(python, name="ask_python", needs_approval=True)]
    return Agent("analyst", tools=tools, model=ScriptedModel([*steps, reply("done")]))


async def pause(python: PythonSessions, *codes: str, **options: Any) -> RunState[Any]:
    """Return the state of a run that has made its first call and waits for approval of the second."""
    result = await Runner.run(analyst(python, *(codes or (MAKE, LOOK))), "go", **options)
    assert len(result.interruptions) == 1
    return result.to_state()


async def load(python: SessionPool | PythonSessions, saved: Any, *codes: str, **options: Any) -> RunState[Any]:
    agent = analyst(python, *(codes or (MAKE, LOOK))[1:])
    agent.model = ScriptedModel([reply("done")])
    return await RunState.from_json(agent, saved, **options)


async def resume(state: RunState[Any], **options: Any) -> str:
    """Approve the waiting call, resume the run to its end and return the output of that call."""
    [question] = state.get_interruptions()
    state.approve(question)
    result = await Runner.run(state.agent, state, **options)
    return str([item.output for item in result.new_items if item.type == "tool_call_output_item"][-1])


@pytest.fixture
async def reopened(pool: SessionPool) -> AsyncIterator[Any]:
    """A way to open sessions again, as another process would."""
    opened: list[PythonSessions] = []

    def reopen(**options: Any) -> PythonSessions:
        for sessions in opened:
            sessions.close()
        opened.append(PythonSessions(pool, **options))
        return opened[-1]

    yield reopen
    for sessions in opened:
        sessions.close()


async def test_a_saved_run_refers_to_its_workspace_and_finds_it_again(store: Store, reopened: Any) -> None:
    state = await pause(reopened(store=store))
    saved = state.to_json()
    reference = state.workspace
    assert reference is not None
    assert (reference.key, reference.version) == (f"conversation:{state.run_id}", 1)
    assert "app.db" in reference.store
    assert saved["run"]["workspace"]["version"] == 1
    assert "embedded_workspace" not in saved
    again = await load(reopened(store=store), saved)
    assert again.workspace_problem is None
    text = await resume(again)
    assert "restored" in text
    assert text.splitlines()[-1] == SEEN


async def test_a_state_that_is_resumed_twice_finds_its_own_version_each_time(store: Store, reopened: Any) -> None:
    saved = (await pause(reopened(store=store))).to_json()
    for _ in range(2):
        assert (await resume(await load(reopened(store=store), saved))).splitlines()[-1] == SEEN


async def test_resuming_a_state_again_after_a_failure_finds_what_its_calls_left(store: Store, reopened: Any) -> None:
    state = await pause(reopened(store=store), MAKE, LOOK, LOOK)
    first = await resume(state)
    assert first.splitlines()[-1] == SEEN
    assert state.workspace is not None
    assert state.workspace.version == 2
    assert (await resume(state)).splitlines()[-1] == "[1, 2, 3, 3] True 1,2"


async def test_files_that_the_program_writes_while_a_run_waits_are_there_when_it_is_resumed(
    store: Store, reopened: Any
) -> None:
    sessions = reopened(store=store)
    state = await pause(sessions, MAKE, "print(rows, open('answer.txt').read())")
    async with sessions.session(state.run_id) as session:
        await session.files.write("answer.txt", "yes")
    assert (await resume(state)).splitlines()[-1] == "[1, 2] yes"


async def test_an_embedded_workspace_needs_no_store(store: Store, reopened: Any, pool: SessionPool) -> None:
    text = await (await pause(reopened(store=store))).to_string(embed_workspace=True)
    reopened()
    state = await load(pool, json.loads(text))
    assert state.workspace_problem is None
    assert (await resume(state)).splitlines()[-1] == SEEN
    # What the run left behind can be embedded again.
    assert state.workspace is not None
    assert "embedded_workspace" in await state.to_json(embed_workspace=True)
    PythonSessions.for_pool(pool).close()


async def test_an_embedded_workspace_becomes_one_of_another_store(store: Store, reopened: Any, tmp_path: Path) -> None:
    saved = await (await pause(reopened(store=store))).to_json(embed_workspace=True)
    async with open_store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        for _ in range(2):
            state = await load(reopened(store=other), saved)
            assert (await resume(state)).splitlines()[-1] == SEEN
        [record] = await other.backend.list_workspaces(limit=9, after="")
        assert record.key == f"conversation:{state.run_id}"
        reopened().close()


async def test_a_state_that_is_saved_again_keeps_what_is_embedded(store: Store, reopened: Any) -> None:
    saved = await (await pause(reopened(store=store))).to_json(embed_workspace=True)
    state = await load(reopened(), saved)
    [question] = state.get_interruptions()
    state.approve(question)
    assert state.to_json()["embedded_workspace"] == saved["embedded_workspace"]
    assert "workspace" not in (await load(reopened(), saved, tolerate=["workspace"])).to_json()["run"]


async def test_without_its_store_a_run_says_what_is_missing_and_keeps_the_rest(store: Store, reopened: Any) -> None:
    state = await pause(reopened(store=store))
    with pytest.warns(UserWarning, match="embed_workspace=True"):
        again = await load(reopened(), state.to_json())
    assert again.workspace_problem is not None
    assert "app.db" in again.workspace_problem
    assert again.to_json()["run"] == state.to_json()["run"]
    async with open_store("memory://") as other:
        with pytest.warns(UserWarning, match="not here"):
            again = await load(reopened(store=other), state.to_json())
        text = await resume(again)
        assert "version 1 of the workspace" in text
        assert "NameError" in text
        reopened().close()


async def test_a_run_that_used_no_python_is_embedded_as_it_is(reopened: Any) -> None:
    agent = Agent("quiet", model=ScriptedModel([reply("hello")]), tools=[python_tool(reopened())])
    state = (await Runner.run(agent, "go")).to_state()
    assert await state.to_json(embed_workspace=True) == state.to_json()


async def test_a_workspace_that_is_in_no_store_cannot_be_embedded(reopened: Any) -> None:
    state = await pause(reopened())
    with pytest.raises(Unsupported, match="store="):
        await state.to_json(embed_workspace=True)
    assert state.to_json()


async def test_a_workspace_above_the_limit_is_not_embedded(store: Store, reopened: Any) -> None:
    state = await pause(reopened(store=store), "import os; big = os.urandom(3 << 20)", LOOK)
    with pytest.raises(Unsupported, match="max_workspace_mb"):
        await state.to_json(embed_workspace=True, max_workspace_mb=2)
    with pytest.raises(InvalidInput):
        await state.to_json(embed_workspace=True, max_workspace_mb=0)
    assert len(await state.to_string(embed_workspace=True, max_workspace_mb=8)) > 3 << 20


def cut(data: bytes) -> bytes:
    return data[:-20]


def replace_start(data: bytes) -> bytes:
    return b"PK" + data[2:]


def raise_format(data: bytes) -> bytes:
    return data[: len(b"standfast-bundle")] + b"\xff" + data[len(b"standfast-bundle") + 1 :]


def empty(data: bytes) -> bytes:
    return b""


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (cut, "damaged"),
        (replace_start, "foreign"),
        (raise_format, "too-new"),
        (flip, "damaged"),
        (lambda _: b"", "foreign"),
    ],
)
async def test_a_damaged_embedded_workspace_is_refused_by_name(
    store: Store, reopened: Any, damage: Any, kind: str
) -> None:
    saved = await (await pause(reopened(store=store))).to_json(embed_workspace=True)
    changed = base64.b64encode(damage(base64.b64decode(saved["embedded_workspace"]))).decode()
    with pytest.raises(WorkspaceRefused) as raised:
        await load(reopened(), saved | {"embedded_workspace": changed})
    assert raised.value.kind == kind
    state = await load(reopened(), saved | {"embedded_workspace": changed}, tolerate=["workspace"])
    assert "NameError" in await resume(state)


async def test_a_workspace_of_another_run_is_refused(store: Store, reopened: Any) -> None:
    one = await (await pause(reopened(store=store))).to_json(embed_workspace=True)
    two = await (await pause(reopened(store=store))).to_json(embed_workspace=True)
    mixed = two | {"embedded_workspace": one["embedded_workspace"]}
    with pytest.raises(WorkspaceRefused) as raised:
        await load(reopened(), mixed)
    assert raised.value.kind == "other-owner"


async def test_a_workspace_is_not_restored_into_a_session_of_another_owner(
    store: Store, reopened: Any, tmp_path: Path
) -> None:
    sessions = reopened(store=store)
    saved = await (await pause(sessions, session=store.session("talk", owner="ann"))).to_json(embed_workspace=True)
    assert saved["run"]["workspace"]["key"] == "session:talk"
    for name, owner in (("bob.db", "bob"), ("ann.db", "ann")):
        async with open_store(f"sqlite:///{tmp_path / name}") as other:
            session = other.session("talk", owner=owner)
            await session.add_items(await store.session("talk").get_items())
            text = await resume(await load(reopened(store=other), saved), session=session)
            assert (SEEN in text) == (owner == "ann")
            assert ("another owner" in text) == (owner == "bob")
            reopened().close()


async def test_a_session_with_a_workspace_of_its_own_keeps_it(store: Store, reopened: Any, tmp_path: Path) -> None:
    saved = await (await pause(reopened(store=store), session=store.session("talk"))).to_json(embed_workspace=True)
    async with open_store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        session = other.session("talk")
        await session.add_items(await store.session("talk").get_items())
        sessions = reopened(store=other)
        await sessions.run("mine = 1", key=session.conversation_key)
        text = await resume(await load(sessions, saved), session=session)
        assert "has variables and files of its own" in text
        call = await sessions.run("mine, 'rows' in globals()", key=session.conversation_key)
        assert call.as_text() == "(1, False)"
        reopened().close()


async def test_the_state_of_a_durable_run_refers_to_the_workspace_of_its_step(
    store: Store, reopened: Any, pool: SessionPool
) -> None:
    agent = Agent(
        "analyst",
        tools=[python_tool(pool)],
        model=ScriptedModel(
            [tool_calls(("run_python", {"code": code}, code)) for code in ("n = 1", "n = 2")] + [reply("done")]
        ),
    )
    async with Runtime.open(store, agents=[agent]) as runtime:
        run = await runtime.start("analyst", "go")
        assert (await wait_for(run.wait())).status == "completed"
        steps = [event.seq async for event in run.events() if event.type == "calls.made"]
        states = [await runtime.state(run.id, at=step) for step in steps]
        saved = [await state.to_json(embed_workspace=True) for state in states]
    assert [state.workspace and state.workspace.version for state in states] == [1, 2]
    for expected, values in enumerate(saved, start=1):
        for text in (values, {key: value for key, value in values.items() if key != "embedded_workspace"}):
            sessions = reopened(store=store)
            look = Agent(
                "analyst",
                tools=[python_tool(sessions)],
                model=ScriptedModel([tool_calls(("run_python", {"code": "print('n is', n)"}, "look")), reply("done")]),
            )
            result = await Runner.run(look, await RunState.from_json(look, text))
            outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
            assert outputs[-1].splitlines()[-1] == f"n is {expected}"
    PythonSessions.for_pool(pool).close()


async def test_the_workspace_of_an_encrypted_run_is_embedded_encrypted(
    tmp_path: Path, reopened: Any, pool: SessionPool
) -> None:
    agent = analyst(pool, "secret = 'top secret ' * 30", "print(len(secret))")
    async with Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", agents=[agent], encryption_key="k" * 32) as runtime:
        run = await runtime.start("analyst", "go")
        assert (await wait_for(run.wait())).status == "waiting"
        saved = await (await runtime.state(run.id)).to_json(embed_workspace=True)
    PythonSessions.for_pool(pool).close()
    assert b"top secret" not in base64.b64decode(saved["embedded_workspace"])
    with pytest.raises(WrongKey):
        await load(reopened(), saved, encryption_key="x" * 32)
    with pytest.warns(UserWarning, match="encryption_key="):
        locked = await load(reopened(), saved)
    assert locked.to_json()["embedded_workspace"] == saved["embedded_workspace"]
    async with open_store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        state = await load(reopened(store=other), saved, encryption_key=["n" * 32, "k" * 32])
        assert (await resume(state)).splitlines()[-1] == "330"
        assert await other.backend.list_workspaces(limit=9, after="") == []
        sealed = await state.to_json(embed_workspace=True)
        assert b"top secret" not in base64.b64decode(sealed["embedded_workspace"])
        reopened().close()


async def test_the_workspace_of_an_encrypted_session_is_embedded_encrypted(store: Store, reopened: Any) -> None:
    async with open_store("memory://") as scratch:
        session = EncryptedSession("talk", store.session("talk"), "k" * 32)
        codes = ("secret = 'top secret ' * 30", "print(len(secret))")
        saved = await (await pause(reopened(store=scratch), *codes, session=session)).to_json(embed_workspace=True)
        assert b"top secret" not in base64.b64decode(saved["embedded_workspace"])
        state = await load(reopened(), saved, encryption_key="k" * 32)
        assert (await resume(state, session=session)).splitlines()[-1] == "330"
        reopened().close()


PROGRAM = """
    import asyncio, json, sys
    from standfast import Agent, FunctionModel, Runner, RunState, open_store, python_tool
    from standfast.workers import PoolConfig, PythonSessions, SessionPool

    def decide(request):
        done = sum(item.get("type") == "function_call_output" for item in request.input)
        codes = [{make!r}, {look!r}]
        return FunctionModel.call("run_python", code=codes[done]) if done < 2 else "done"

    async def main():
        async with SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool:
            first = not sys.stdin.isatty() and sys.argv[1] == "make"
            store = await open_store("sqlite:///app.db") if first else None
            tool = python_tool(PythonSessions(pool, store=store), needs_approval=True)
            agent = Agent("analyst", tools=[tool], model=FunctionModel(decide))
            state = "go" if first else await RunState.from_string(agent, open(sys.argv[2]).read())
            result = await Runner.run(agent, state) if first else None
            if first:
                state = result.to_state()
            state.approve(state.get_interruptions()[0])
            result = await Runner.run(agent, state)
            if first:
                open(sys.argv[2], "w").write(await result.to_state().to_string(embed_workspace=True))
                await store.close()
            else:
                print(result.new_items[-2].output)

    asyncio.run(main())
"""


def test_one_file_is_all_that_another_process_in_another_directory_needs(tmp_path: Path) -> None:
    program = textwrap.dedent(PROGRAM).replace("{make!r}", repr(MAKE)).replace("{look!r}", repr(LOOK))
    file = tmp_path / "run.json"
    for action in ("make", "resume"):
        (tmp_path / action).mkdir()
        done = subprocess.run(
            [sys.executable, "-c", program, action, str(file)],
            cwd=tmp_path / action,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, done.stderr
        (tmp_path / "make" / "app.db").unlink(missing_ok=True)
    assert done.stdout.splitlines()[-1] == SEEN


async def test_a_portable_run_of_an_earlier_version_is_resumed(reopened: Any) -> None:
    """Its checkpoint is one of Python 3.11; other versions of Python run its cells again."""
    saved = json.loads((Path(__file__).parents[1] / "runs" / "golden" / "portable_run_2.4.json").read_text())
    assert (await resume(await load(reopened(), saved))).splitlines()[-1] == SEEN
