"""Memories of runs in a workspace, and the events of sessions."""

import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from standfast import MaxTurnsExceeded, RunConfig, Runner, Runtime
from standfast.sandbox import (
    CallbackSink,
    ChainedSink,
    EventPayloadPolicy,
    HttpProxySink,
    Instrumentation,
    JsonlOutboxSink,
    MemoryGenerateConfig,
    MemoryLayoutConfig,
    MemoryReadConfig,
    SandboxAgent,
    SandboxRunConfig,
    UnixLocalSandboxClient,
    WorkspaceJsonlSink,
)
from standfast.sandbox.capabilities import Filesystem, Memory, Shell
from standfast.testing import ScriptedModel, assistant_message, function_call


def make_memory(*slugs, **options):
    notes = [{"rollout_slug": slug, "rollout_summary": f"# {slug}", "raw_memory": f"- {slug}"} for slug in slugs]
    first = ScriptedModel([[assistant_message(json.dumps(one))] for one in notes])
    write = "cp memories/raw_memories.md memories/MEMORY.md; echo TIPS > memories/memory_summary.md"
    steps = [[function_call("exec_command", {"cmd": write}, call_id="x")], [assistant_message("ok")]]
    second = ScriptedModel(steps * len(slugs))
    return Memory(generate=MemoryGenerateConfig(phase_one_model=first, phase_two_model=second, **options))


def make_agent(memory, *steps):
    model = ScriptedModel([[assistant_message(step)] if isinstance(step, str) else step for step in steps])
    return SandboxAgent("a", model=model, capabilities=[memory, Filesystem(), Shell()])


async def test_the_oldest_memories_are_deleted_and_a_failure_loses_nothing():
    memory = make_memory("One Thing!", "two", max_raw_memories_for_consolidation=1)
    agent = make_agent(memory, "1", "2", "3")
    async with await UnixLocalSandboxClient().create() as session:
        for group in ("g/1", "g2"):
            config = RunConfig(sandbox=SandboxRunConfig(session=session), group_id=group)
            await Runner.run(agent, "hello", run_config=config)
        await session.run_pre_stop_hooks()
        found = (await session.exec("find sessions memories -type f | sort; cat memories/MEMORY.md")).stdout.decode()
        files, _, index = found.partition("rollout_id: ")
        assert [line for line in files.split() if "rollout_summaries" in line] == [
            "memories/rollout_summaries/g2_two.md"
        ]
        assert "sessions/g_1_" in files  # a name that can be a file's
        assert index.startswith("g2\n")
        assert index.endswith("- two")
        # No notes can be made of the third run: its models have nothing more to say.
        assert (await Runner.run(agent, "hello", run_config=config)).final_output == "3"


async def test_runs_that_fail_are_remembered_and_layouts_keep_agents_apart():
    layout = MemoryLayoutConfig(memories_dir="m/b", sessions_dir="s/b")
    other = Memory(read=None, layout=layout, generate=MemoryGenerateConfig(phase_one_model=ScriptedModel([])))
    agent = make_agent(other, [function_call("exec_command", {"cmd": "true"}, call_id="c")])
    async with await UnixLocalSandboxClient().create() as session:
        config = RunConfig(sandbox=SandboxRunConfig(session=session), group_id="g")
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(agent, "hello", run_config=config, max_turns=1)
        [line] = (await session.read(Path("s/b/g.jsonl"))).read().decode().splitlines()
        end = json.loads(line)["terminal_metadata"]
        assert (end["terminal_state"], end["exception_type"]) == ("max_turns_exceeded", "MaxTurnsExceeded")
    with pytest.raises(ValueError, match="at least one"):
        Memory(read=None, generate=None)
    with pytest.raises(ValueError, match="relative path"):
        Memory(layout=MemoryLayoutConfig(memories_dir="../x"))
    assert Memory(read=MemoryReadConfig(live_update=False)).required_capability_types() == {"shell"}


async def test_memories_are_shared_by_durable_runs_of_a_session(tmp_path):
    memory = make_memory("one", "two")
    agent = make_agent(memory, "1", "2")
    config = RunConfig(sandbox=SandboxRunConfig(client=UnixLocalSandboxClient()))
    async with Runtime.open(f"sqlite:///{tmp_path / 'app.db'}", agents=[agent], run_config=config) as runtime:
        for _ in range(2):
            run = await runtime.start("a", "hello", session_id="s")
            assert (await run.wait()).status == "completed"
        assert "TIPS" not in agent.model.calls[0].system_instructions
        assert "TIPS" in agent.model.calls[1].system_instructions
        assert (await (await runtime.workspace("s")).read("sessions/s.jsonl")).count(b"\n") == 2


async def test_events_go_to_every_sink_with_what_its_policy_allows(tmp_path):
    seen, received = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        quiet = EventPayloadPolicy(include_write_len=False)
        spool = tmp_path / "spool.jsonl"
        sinks = [
            ChainedSink(CallbackSink(lambda event, session: seen.append((event, session)))),
            JsonlOutboxSink(tmp_path / "out" / "events.jsonl", payload_policy=quiet),
            WorkspaceJsonlSink(ephemeral=True, max_bytes=2000),
            HttpProxySink(f"http://127.0.0.1:{server.server_port}/"),
            HttpProxySink("http://127.0.0.1:1/", spool_path=spool, timeout_s=1),
        ]
        client = UnixLocalSandboxClient(instrumentation=Instrumentation(sinks=sinks))
        async with await client.create() as session:
            await session.exec("echo sec$(echo r)et")
            await session.write(Path("a"), io.BytesIO(b"12345"))
            assert session.get_skipped_paths() == [f"logs/events-{session.state.session_id}.jsonl"]
        lines = [json.loads(line) for line in (tmp_path / "out" / "events.jsonl").read_text().splitlines()]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    operations = [(event.op, event.phase) for event, _ in seen]
    assert operations[::2] == [(op, "start") for op in ("start", "exec", "write", "stop", "shutdown")]
    assert [(line["op"], line["phase"]) for line in lines] == operations
    assert (
        [line["seq"] for line in received]
        == [*range(1, 11)]
        == [json.loads(one)["seq"] for one in spool.read_text().splitlines()]
    )
    assert seen[4][0].data["bytes"] == 5
    assert "bytes" not in lines[4]["data"]
    assert "secret" not in json.dumps(lines)
    assert all(found is session for _, found in seen)


async def test_a_sink_that_fails_ends_the_operation_only_if_it_shall():
    def fail(event, session):
        raise OSError("full")

    quiet = Instrumentation(sinks=[CallbackSink(fail, on_error="log"), CallbackSink(fail, mode="best_effort")])
    async with await UnixLocalSandboxClient(instrumentation=quiet).create() as session:
        assert (await session.exec("true")).exit_code == 0
    strict = Instrumentation(sinks=[CallbackSink(fail)])
    with pytest.raises(RuntimeError, match="sink failed"):
        await (await UnixLocalSandboxClient(instrumentation=strict).create()).start()
