"""``standfast workspaces``: what a store has of the variables and files of conversations."""

import asyncio
from pathlib import Path

import pytest

from standfast import Agent, Runtime, open_store, python_tool
from standfast.testing import ScriptedModel, assistant_message, function_call
from standfast.workers import PoolConfig, PythonSessions, SessionPool


@pytest.fixture
def worked(url):
    """A store with one workspace of two versions."""

    async def work() -> None:
        async with open_store(url) as store, SessionPool(PoolConfig(min_idle=0, max_sessions=1)) as pool:
            sessions = PythonSessions(pool, store=store)
            for code in ("x = 1; open('a.txt', 'w').write('one')", "y = 'two'; open('b.txt', 'w').write('two')"):
                await sessions.run(code, key="talk")
                await sessions.save("talk")

    asyncio.run(work())
    return "conversation:talk"


def test_workspaces_are_listed_and_shown(run_json, standfast, worked):
    [listed] = run_json("workspaces", "list")
    assert (listed["key"], listed["version"]) == (worked, 2)
    shown = run_json("workspaces", "show", worked)
    assert {"x", "y"} <= {one["name"] for one in shown["variables"]}
    assert [one["version"] for one in shown["history"]] == [1, 2]
    assert "y" not in {one["name"] for one in run_json("workspaces", "show", worked, "--at", "1")["variables"]}
    assert worked in standfast("workspaces", "show", worked).stdout
    assert standfast("workspaces", "show", "nobody").exit_code == 5


def test_files_of_a_version_are_listed_and_restored(run_json, standfast, worked, tmp_path: Path):
    assert [one["path"] for one in run_json("workspaces", "files", worked)] == ["a.txt", "b.txt"]
    out = tmp_path / "out"
    assert run_json("workspaces", "restore", worked, str(out), "--at", "1")["files"] == 1
    assert (out / "a.txt").read_text() == "one"
    assert out.stat().st_mode & 0o777 == 0o700
    assert standfast("workspaces", "restore", worked, str(out)).exit_code == 2


def test_old_checkpoints_are_pruned(run_json, worked):
    report = run_json("workspaces", "prune", "--keep", "1", "--yes")
    assert (report["dropped"], report["kept"]) == (1, 1)


def test_an_encrypted_workspace_is_shown_with_the_key(run_json, standfast, url, monkeypatch):
    key = "a key of good length, number one"

    async def work() -> None:
        async with SessionPool(PoolConfig(min_idle=0, max_sessions=1)) as pool:
            call = function_call("run_python", {"code": "x = 1; open('a.txt', 'w').close()"}, call_id="c1")
            model = ScriptedModel([[call], [assistant_message("done")]])
            agent = Agent("analyst", tools=[python_tool(pool)], model=model)
            async with Runtime.open(url, agents=[agent], encryption_key=key) as runtime:
                await (await runtime.start("analyst", "go", session_id="s")).wait()

    asyncio.run(work())
    assert standfast("workspaces", "show", "s").exit_code != 0
    monkeypatch.setenv("STANDFAST_ENCRYPTION_KEY", key)
    assert "x" in {one["name"] for one in run_json("workspaces", "show", "s")["variables"]}
    assert [one["path"] for one in run_json("workspaces", "files", "s")] == ["a.txt"]
