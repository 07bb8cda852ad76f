"""Sandbox agents in durable runs: the workspace is in the store, and another process continues in it."""

import signal

import pytest
from coder_job import coder, make_steps, sandbox_config
from shop import LEASE

from factories.runtime import reply, text_agent, tool_calls, wait_for
from standfast import Agent, RunConfig, Runtime, function_tool
from standfast.sandbox import LocalSnapshotSpec, SandboxRunConfig, UnixLocalSandboxClient
from standfast.testing import ScriptedModel


def command(line, call_id):
    return tool_calls(("exec_command", {"cmd": line}, call_id))


async def outputs(run):
    return [
        item["output"].partition("Output:\n")[2]
        async for event in run.events()
        for item in event.data.get("items", ())
        if "output" in item
    ]


async def test_a_run_waits_and_another_runtime_continues_in_its_workspace(shared_url):
    steps = [
        command("mkdir -p d && echo one > d/a && ln -s d/a link && chmod 755 d/a", "c1"),
        tool_calls(("publish", {}, "c2")),
        command("cat link; stat -c %a d/a; readlink link; echo $TOKEN", "c3"),
        reply("done"),
    ]
    options = {"lease": LEASE, "run_config": sandbox_config(token="t0")}
    async with Runtime.open(shared_url, agents=[coder(steps)], **options) as runtime:
        run = await runtime.start("coder", "go", session_id="s")
        outcome = await wait_for(run.wait())
        assert outcome.status == "waiting"
        assert [file.path for file in (await runtime.workspace("s")).files] == ["d/a", "notes"]
    options["run_config"] = sandbox_config(token="t1")
    async with Runtime.open(shared_url, agents=[coder(steps)], **options) as runtime:
        [approval] = await runtime.approvals(status="pending")
        await runtime.decide(approval.id, "approve")
        run = await runtime.run(run.run_id)
        assert (await wait_for(run.wait())).status == "completed"
        assert (await outputs(run))[-1] == "one\n755\nd/a\nt1\n"
        again = await runtime.start("coder", "again", session_id="s")
        assert (await wait_for(again.wait())).status == "completed"


async def test_the_runs_of_a_session_share_a_workspace_which_follows_forks_and_deletion(tmp_path):
    steps = [command("echo 1 >> log", "c1"), reply("one"), command("echo 2 >> log", "c2"), reply("two")]
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[coder(steps)], lease=LEASE, run_config=sandbox_config()) as runtime:
        for _ in range(2):
            run = await runtime.start("coder", "go", session_id="s")
            assert (await wait_for(run.wait())).status == "completed"
        assert await (await runtime.workspace("s")).read("log") == b"1\n2\n"
        session = runtime.session("s")
        fork = await session.fork(at=4, session_id="f")
        assert await (await runtime.workspace(fork.session_id)).read("log") == b"1\n"
        await session.rewind(4)
        assert await (await runtime.workspace("s")).read("log") == b"1\n"
        alone = await runtime.start("coder", "go")
        await wait_for(alone.wait())
        assert await (await runtime.workspace(alone.run_id)).read("notes") == b"hi"
        await runtime.delete(alone.run_id)
        await runtime.store.delete("s")
        keys = [record.key for record in await runtime.store.backend.list_workspaces(limit=9, after="")]
        assert keys == ["sandbox:session:f"]


async def test_the_workspace_of_a_nested_agent_is_deleted_with_the_session_or_run_and_no_other(tmp_path):
    inner = coder([command("echo 1 > a", "i1"), reply("written")])
    steps = [tool_calls(("code", {"input": "go"}, "c1")), reply("done")]
    code = inner.as_tool("code", "Write code.", run_config=sandbox_config())
    outer = Agent("outer", tools=[code], model=ScriptedModel(steps * 4))
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[outer], lease=LEASE) as runtime:
        for session_id in ("s", "s:c1", "cleared"):
            run = await runtime.start("outer", "go", session_id=session_id)
            assert (await wait_for(run.wait())).status == "completed"
        alone = await runtime.start("outer", "go")
        await wait_for(alone.wait())

        async def list_keys():
            return [record.key for record in await runtime.store.backend.list_workspaces(limit=9, after="")]

        assert len(await list_keys()) == 4, await list_keys()
        await runtime.session("cleared").clear_session()
        await runtime.store.delete("s")
        await runtime.delete(alone.run_id)
        assert len(await list_keys()) == 1
        await runtime.store.delete("s:c1")
        assert await list_keys() == []


@pytest.mark.parametrize("point", ["inside", "after"])
async def test_a_killed_process_loses_no_file_and_a_command_under_way_is_uncertain(spawn, shared_url, point):
    async with spawn("command", shared_url, point) as child:
        while await child.line() != point:
            pass
        child.signal(signal.SIGKILL)
        await child.end()
    config = sandbox_config()
    async with Runtime.open(shared_url, agents=[coder(make_steps())], lease=LEASE, run_config=config) as runtime:
        run = await runtime.start("coder", "go", session_id="s", key="k")
        outcome = await wait_for(run.wait())
        if point == "inside":
            [approval] = outcome.approvals
            assert approval.kind == "uncertain"
            await runtime.decide(approval.id, "again")
            outcome = await wait_for(run.wait())
        assert outcome.status == "completed", outcome
        assert (await outputs(run))[-1] == "first\nsecond\n"


async def test_a_session_of_the_program_stays_its_own_and_a_snapshot_is_written_besides(tmp_path):
    url, kept = f"sqlite:///{tmp_path / 'app.db'}", tmp_path / "kept"
    client = UnixLocalSandboxClient()
    steps = [command("echo 1 > a", "c1"), reply("done")]
    async with await client.create(options=None) as session:
        config = RunConfig(sandbox=SandboxRunConfig(session=session))
        async with Runtime.open(url, agents=[coder(steps)], lease=LEASE, run_config=config) as runtime:
            run = await runtime.start("coder", "go")
            assert (await wait_for(run.wait())).status == "completed"
            assert await runtime.store.backend.list_workspaces(limit=9, after="") == []
        assert await session.running()
        assert (await session.exec("cat a")).stdout == b"1\n"
    config = RunConfig(sandbox=SandboxRunConfig(client=client, snapshot=LocalSnapshotSpec(base_path=kept)))
    async with Runtime.open(url, agents=[coder(steps)], lease=LEASE, run_config=config) as runtime:
        run = await runtime.start("coder", "go")
        assert (await wait_for(run.wait())).status == "completed"
        assert await (await runtime.workspace(run.run_id)).read("a") == b"1\n"
    assert len(list(kept.iterdir())) == 1


async def test_a_workspace_that_is_deleted_during_the_run_begins_again_with_what_the_sandbox_has(tmp_path):
    @function_tool
    async def forget() -> str:
        await runtime.session("s").clear_session()
        return "forgotten"

    steps = [command("echo 1 > a", "c1"), tool_calls(("forget", {}, "c2")), command("echo 2 > b", "c3"), reply("done")]
    agent = coder([])
    agent.tools, agent.model = [forget], ScriptedModel(steps)
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[agent], lease=LEASE, run_config=sandbox_config()) as runtime:
        run = await runtime.start("coder", "go", session_id="s")
        assert (await wait_for(run.wait())).status == "completed"
        found = await runtime.workspace("s")
        assert [file.path for file in found.files] == ["a", "b", "notes"]


async def test_the_workspace_of_an_encrypted_run_is_encrypted(tmp_path):
    url = f"sqlite:///{tmp_path / 'app.db'}"
    steps = [command("echo SECRET-$((40+2)) > a", "c1"), reply("done")]
    options = {"lease": LEASE, "run_config": sandbox_config(), "encryption_key": "k" * 32}
    async with Runtime.open(url, agents=[coder(steps)], **options) as runtime:
        run = await runtime.start("coder", "go", session_id="s")
        assert (await wait_for(run.wait())).status == "completed"
        assert await (await runtime.workspace("s")).read("a") == b"SECRET-42\n"
    assert b"SECRET-42" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


async def test_agents_without_a_sandbox_start_none(tmp_path):
    class Client(UnixLocalSandboxClient):
        async def create(self, **options):
            raise AssertionError

    config = RunConfig(sandbox=SandboxRunConfig(client=Client()))
    async with Runtime.open("memory://", agents=[text_agent("hi")], run_config=config) as runtime:
        run = await runtime.start("support", "go")
        assert (await wait_for(run.wait())).status == "completed"
