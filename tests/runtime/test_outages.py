"""The database goes away for a while, and an owner stalls: the run goes on, once."""

import asyncio
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import asyncpg
import crasher
import pytest
from durable_kit import calls, says, soon, until

import holdfast
from holdfast import Agent, Runtime, function_tool
from holdfast.testing import ScriptedModel
from servers import dsn

SOURCE = Path(holdfast.__file__).parent.parent


async def test_a_run_goes_on_when_the_database_comes_back(postgres_tables_url):
    made = []

    @function_tool
    async def step(n: int) -> str:
        made.append(n)
        await asyncio.sleep(0.02)
        return str(n)

    turns = [calls(("step", {"n": n}, f"c{n}")) for n in range(15)]
    agent = Agent("support", tools=[step], model=ScriptedModel([*turns, says("done")]))
    admin = await asyncpg.connect(dsn(postgres_tables_url))
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    try:
        async with Runtime.open(postgres_tables_url, agents=[agent], lease=2) as runtime:
            run = await runtime.start("support", "go", session_id="s", max_turns=30)
            waiting = asyncio.create_task(run.wait())
            for _ in range(4):
                await admin.execute(cut)
                await asyncio.wait({waiting}, timeout=0.3)
            assert (await soon(waiting, 30)).final_output == "done"
            items = await runtime.store.session("s").get_items()
            assert (await runtime.store.session("s").check()).ok
    finally:
        await admin.close()
    assert made == list(range(15))
    assert len(items) == 32


async def test_an_owner_that_stalls_and_comes_back_writes_nothing(shared_url, tmp_path):
    effects = tmp_path / "effects"
    effects.touch()
    stalled = subprocess.Popen(  # noqa: ASYNC220 - it takes a moment
        [sys.executable, str(Path(__file__).with_name("staller.py")), shared_url, str(effects)],
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
        stdout=subprocess.PIPE,
        text=True,
    )
    with closing(stalled.stdout):
        try:
            assert await asyncio.to_thread(stalled.stdout.readline) == "inside the tool\n"
            os.kill(stalled.pid, signal.SIGSTOP)
            agents = crasher.agents(str(effects))
            async with Runtime.open(shared_url, agents=agents, lease=crasher.LEASE) as runtime:
                run = await runtime.start("shop", "charge", session_id="s", key="order-7")
                [asked] = (await soon(run.wait())).approvals
                assert asked.kind == "uncertain"
                await runtime.decide(asked.id, "done", output="receipt")
                assert (await soon(run.wait())).final_output == "done"
                before = (await run.info()).steps
                os.kill(stalled.pid, signal.SIGCONT)
                assert await asyncio.to_thread(stalled.stdout.readline) == "passed on\n"
                assert (await run.info()).steps == before
                assert (await runtime.store.session("s").check()).ok
        finally:
            stalled.kill()
            await asyncio.to_thread(stalled.wait)


@pytest.mark.parametrize("scenario", ["parallel", "handoff", "nested"])
@pytest.mark.parametrize("point", ["before:6", "before:8", "after:8", "after:9"])
async def test_what_was_done_before_a_crash_is_not_done_again(tmp_path, scenario, point):
    url, effects = f"sqlite:///{tmp_path / 'app.db'}", tmp_path / "effects"
    effects.touch()
    command = [sys.executable, crasher.__file__, url, str(effects), point, scenario]
    done = await asyncio.to_thread(
        subprocess.run, command, env={"PYTHONPATH": str(SOURCE), "PATH": ""}, capture_output=True, check=False
    )
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    async with Runtime.open(url, agents=crasher.agents(str(effects), scenario), lease=crasher.LEASE) as runtime:
        run = await runtime.start("shop", "charge 7", session_id="s", key="order-7")

        async def settled():
            outcome = await run.wait()
            for asked in outcome.approvals:
                assert asked.kind == "uncertain"
                await runtime.decide(asked.id, "done", output="receipt")
            return outcome.status == "completed"

        await until(settled)
        assert (await runtime.store.session("s").check()).ok
    made = effects.read_text().splitlines()
    assert len(made) == len(set(made)) <= 3
