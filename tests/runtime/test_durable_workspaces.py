"""The Python of durable runs: variables and files that outlive the process."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from factories.runtime import reply, tool_calls, wait_for
from standfast import Agent, Runtime, python_tool
from standfast.store.operations import DropCheckpoint
from standfast.testing import ScriptedModel
from standfast.workers import PoolConfig, PythonSessions, SessionPool


def analyst(sessions: Any, *codes: str, **options: Any) -> Agent[Any]:
    """An agent whose model runs these pieces of code, one a turn, and then says that it is done."""
    steps = [tool_calls(("run_python", {"code": code}, f"c{n}")) for n, code in enumerate(codes)]
    return Agent("analyst", tools=[python_tool(sessions, **options)], model=ScriptedModel([*steps, reply("done")]))


@asynccontextmanager
async def machine(url: str, *codes: str, **options: Any) -> AsyncIterator[Runtime]:
    """A runtime with a pool of its own, and an agent that runs these codes."""
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool,
        Runtime.open(url, agents=[analyst(PythonSessions(pool, **options), *codes)]) as runtime,
    ):
        yield runtime


async def list_outputs(run: Any) -> list[str]:
    return [
        item["output"]
        async for event in run.events()
        for item in event.data.get("items", ())
        if item.get("type") == "function_call_output"
    ]


async def list_events(run: Any, kind: str) -> list[dict[str, Any]]:
    return [event.data async for event in run.events() if event.type == kind]


async def ask(runtime: Runtime, **options: Any) -> Any:
    run = await runtime.start("analyst", "go", **options)
    outcome = await wait_for(run.wait())
    assert outcome.status == "completed", outcome
    return run


async def test_the_next_run_continues_elsewhere_with_the_same_variables_and_files(shared_url):
    async with machine(shared_url, "x = [1]; y = x", "y.append(2); open('f', 'w').write('hi')") as runtime:
        run = await ask(runtime, session_id="s")
        assert await list_outputs(run) == ["[no output]", "2"]
        saved = await list_events(run, "workspace.saved")
        assert saved[-1]["version"] == 2
        assert await list_events(run, "workspace.restored") == []
    async with machine(shared_url, "x, y is x, open('f').read()") as runtime:
        run = await ask(runtime, session_id="s")
        [text] = await list_outputs(run)
        assert text.splitlines()[-1] == "([1, 2], True, 'hi')"
        [restored] = await list_events(run, "workspace.restored")
        assert (restored["version"], restored["checkpoint"], restored["replayed"]) == (2, 2, [])
        assert (restored["differs"], restored["unkept"], restored["missing"]) == ([], {}, [])


async def test_calls_after_the_last_checkpoint_are_run_again(shared_url):
    async with machine(shared_url, "import random; x = random.random()", "print(x > 2)", "x = 1") as runtime:
        await ask(runtime, session_id="s")
        for version in (2, 3):
            await drop_checkpoint(runtime, "session:s", version)
    async with machine(shared_url, "x") as runtime:
        run = await ask(runtime, session_id="s")
        [text] = await list_outputs(run)
        assert text.splitlines()[-1] == "1"
        [restored] = await list_events(run, "workspace.restored")
        assert (restored["checkpoint"], restored["replayed"], restored["differs"]) == (1, [2, 3], [])


@pytest.mark.parametrize("loaded", [0, 1])
async def test_random_numbers_are_the_same_when_calls_are_run_again(shared_url, loaded):
    """Nothing has seeded the generators; NumPy is imported after the checkpoint that is loaded, if there is one."""
    codes = ["import random; x = random.random()", "import numpy as np; y = np.random.rand()"]
    codes.append("x, y, random.random(), np.random.rand()")
    for part in (codes[:loaded], codes[loaded:]):
        async with machine(shared_url, *part, durability="on_pause") as runtime:
            await ask(runtime, session_id="s")
    async with Runtime.open(shared_url) as runtime:
        await drop_checkpoint(runtime, "session:s", 3)
    async with machine(shared_url, "x") as runtime:
        run = await ask(runtime, session_id="s")
        [restored] = await list_events(run, "workspace.restored")
        assert (restored["checkpoint"], restored["replayed"]) == (loaded, [1, 2, 3][loaded:])
        assert restored["differs"] == []


async def test_a_call_that_gives_another_output_is_named(shared_url):
    async with machine(shared_url, "x = 1", "import os; os.urandom(8)", durability="on_pause") as runtime:
        await ask(runtime, session_id="s")
        await drop_checkpoint(runtime, "session:s", 2)
    async with machine(shared_url, "x") as runtime:
        run = await ask(runtime, session_id="s")
        [restored] = await list_events(run, "workspace.restored")
        assert restored["differs"] == [{"version": 2, "call": "c1"}]
        assert "different output" in (await list_outputs(run))[0]


async def drop_checkpoint(runtime: Runtime, key: str, version: int) -> None:
    await runtime.store.backend.commit(DropCheckpoint(key=key, version=version))


async def test_a_run_without_a_session_has_a_workspace_of_its_own(shared_url):
    for _ in range(2):
        async with machine(shared_url, "'x' in globals()", "x = 1") as runtime:
            run = await ask(runtime)
            assert (await list_outputs(run))[0] == "False"
            assert (await runtime.store.backend.get_workspace(f"run:{run.id}")).version == 2


async def test_two_calls_of_one_turn_make_two_versions(shared_url):
    steps = [
        tool_calls(("run_python", {"code": "x = 1"}, "a"), ("run_python", {"code": "y = 2"}, "b")),
        tool_calls(("run_python", {"code": "x + y"}, "c")),
        reply("done"),
    ]
    async with SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool:
        agent = Agent("analyst", tools=[python_tool(pool)], model=ScriptedModel(steps))
        async with Runtime.open(shared_url, agents=[agent]) as runtime:
            run = await ask(runtime, session_id="s")
            assert (await list_outputs(run))[-1] == "3"
            assert (await runtime.store.backend.get_workspace("session:s")).version == 3
            assert await list_events(run, "workspace.restored") == []


async def test_a_call_that_kills_its_worker_leaves_the_state_before_it(shared_url):
    codes = ("x = 1", "x = 2; import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "x")
    async with machine(shared_url, *codes) as runtime:
        run = await ask(runtime, session_id="s")
        _, killed, after = await list_outputs(run)
        assert "those from before this call" in killed
        assert after.splitlines()[-1] == "1"


async def test_what_cannot_be_saved_is_an_event_of_the_run(shared_url):
    codes = ("x = 1", "import os; x = os.urandom(2_000_000)")
    async with machine(shared_url, *codes, max_checkpoint_mb=1) as runtime:
        run = await ask(runtime, session_id="s")
        unsaved = (await list_events(run, "workspace.unsaved"))[-1]
        assert unsaved["key"] == "session:s"
        assert unsaved["checkpoint"] <= 1
        assert "more than 1048576 bytes" in unsaved["reason"]


async def test_off_keeps_nothing(shared_url):
    async with machine(shared_url, "x = 1", durability="off") as runtime:
        await ask(runtime, session_id="s")
        assert await runtime.store.backend.get_workspace("session:s") is None


KEY, OTHER_KEY = "k" * 32, "o" * 32


@asynccontextmanager
async def sealed_machine(url: str, *codes: str, key: Any = KEY) -> AsyncIterator[Runtime]:
    async with (
        SessionPool(PoolConfig(min_idle=0, max_sessions=3)) as pool,
        Runtime.open(url, agents=[analyst(PythonSessions(pool), *codes)], encryption_key=key) as runtime,
    ):
        yield runtime


async def test_the_workspace_of_an_encrypted_run_is_encrypted(tmp_path):
    path = tmp_path / "app.db"
    secret = "attack at dawn " * 5
    async with sealed_machine(f"sqlite:///{path}", f"x = {secret!r}; open('f', 'w').write(x)") as runtime:
        await ask(runtime, session_id="s")
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"attack at dawn" not in stored
    assert hashlib.sha256(secret.encode()).hexdigest().encode() not in stored
    async with sealed_machine(f"sqlite:///{path}", "open('f').read() == x", key=[OTHER_KEY, KEY]) as runtime:
        run = await ask(runtime, session_id="s")
        assert (await list_outputs(run))[0].splitlines()[-1] == "True"
        assert (await list_events(run, "workspace.restored"))[0]["checkpoint"] == 1
