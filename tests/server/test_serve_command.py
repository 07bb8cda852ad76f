"""``standfast serve`` as a process: started, killed, drained."""

import asyncio
import json
import os
import re
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from standfast.cli.commands.serve import run_workers
from standfast.client import Client
from standfast.server.process import listen

AGENTS = Path(__file__).parent / "speaker.py"


class ServeProcess:
    """A running ``standfast serve`` and the URL that it printed."""

    def __init__(self, process, url, token):
        self.process, self.url, self.token = process, url, token

    @property
    def client(self):
        return Client(self.url, token=self.token)

    def list_children(self):
        return list_children(self.process.pid)


def list_children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@asynccontextmanager
async def start_server(store, *options):
    arguments = ["-m", "standfast", "serve", str(AGENTS), "--store", store, "--port", "0", "--lease", "3", *options]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    errors = asyncio.ensure_future(process.stderr.read())
    try:
        line = (await process.stdout.readline()).decode()
        found = re.fullmatch(r"(http://[^/]+)/\?token=(\S+)\n", line)
        assert found, (line, await errors)
        yield ServeProcess(process, *found.groups())
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
        await errors
        process._transport.close()


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path / 'app.db'}"


async def test_a_run_is_served_and_its_words_arrive_once(store):
    async with start_server(store) as server, server.client as client:
        assert [agent.name for agent in await client.agents()] == ["speaker"]
        run = await client.start("speaker", "talk")
        events = [event async for event in run.events(until="end")]
        assert [event.seq for event in events if not event.live] == list(range(1, (await run.info()).steps + 1))
        words = [event.data["delta"] for event in events if event.live and "delta" in event.data]
        assert "".join(words).split() == [f"word{number}" for number in range(30)]


async def test_draining_ends_streams_and_another_server_continues_the_run(store):
    async with start_server(store) as first, first.client as client:
        run = await client.start("speaker", "pay")
        assert (await run.wait()).status == "waiting"
        stream = client.connection.stream(f"/runs/{run.id}/events")
        lines = await stream.__aenter__()
        assert await anext(lines) == "retry: 1000"
        first.process.terminate()
        rest = [line async for line in lines]
        await stream.__aexit__(None, None, None)
        assert ": the server is stopping, reconnect" in rest
        assert await first.process.wait() == 0
    async with start_server(store) as second, second.client as client:
        [approval] = await client.approvals(status="pending")
        await client.decide(approval.id, "approve")
        outcome = await (await client.run(run.id)).wait()
        assert outcome.final_output.endswith("then paid 5")


async def test_a_killed_process_of_several_is_replaced_and_no_event_is_lost(store):
    async with start_server(store, "--workers", "2") as server, server.client as client:
        run = await client.start("speaker", "talk", key="k")
        received = []

        async def read():
            async for event in run.events(until="end"):
                if not event.live:
                    received.append(event.seq)

        reading = asyncio.ensure_future(read())
        while not received:
            await asyncio.sleep(0.01)
        victims = server.list_children()
        os.kill(victims[0], signal.SIGKILL)
        while len(pids := server.list_children()) < 2 or victims[0] in pids:
            await asyncio.sleep(0.05)
        os.kill(victims[1], signal.SIGKILL)
        await reading
        info = await run.info()
        assert info.status == "completed"
        assert received == list(range(1, info.steps + 1))


async def test_processes_end_when_the_command_is_cancelled(store):
    loop = asyncio.get_running_loop()
    with listen("127.0.0.1", 0) as listener:
        words = ["serve", str(AGENTS), "--store", store, "--workers", "2"]
        others = set(list_children(os.getpid()))
        serving = asyncio.ensure_future(run_workers(2, listener, words, as_json=True))
        try:
            while len(pids := set(list_children(os.getpid())) - others) < 2:
                await asyncio.sleep(0.01)
            serving.cancel()
            await asyncio.wait({serving})
            assert not pids & set(list_children(os.getpid()))
        finally:
            for sig in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(sig)


async def test_an_address_of_other_machines_needs_the_names_of_its_hosts(store):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "standfast", "serve", str(AGENTS), "--store", store, "--host", "0.0.0.0", "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"--allowed-host" in errors


async def test_the_command_line_uses_a_server_as_it_uses_a_store(store, command_process, tmp_path):
    async def run_command(server, *words):
        """Run ``standfast`` against the server and return its exit code and its JSON."""
        words = ("-m", "standfast", "--server", server.url, *words, "--json")
        environment = os.environ | {"STANDFAST_TOKEN": server.token}
        ended = await asyncio.to_thread(command_process.run, *words, directory=tmp_path, environment=environment)
        text = ended.stdout or ended.stderr
        try:
            return ended.returncode, json.loads(text)
        except json.JSONDecodeError:
            return ended.returncode, [json.loads(line) for line in text.splitlines()]

    async with start_server(store) as server, server.client as client:
        run = await client.start("speaker", "pay", session_id="talk")
        await run.wait()
        code, [listed] = await run_command(server, "runs", "list")
        assert (code, listed["run_id"], listed["status"]) == (0, run.id, "waiting")
        code, [approval] = await run_command(server, "approvals", "list")
        assert (code, approval["tool"]) == (0, "pay")
        code, _ = await run_command(server, "approvals", "approve", approval["id"])
        assert code == 0
        assert (await run.wait()).status == "completed"
        assert (await client.approval(approval["id"])).decided_by == "local"
        code, events = await run_command(server, "runs", "events", run.id)
        assert (code, [event["seq"] for event in events if event["seq"]]) == (
            0,
            list(range(1, (await run.info()).steps + 1)),
        )
        code, [session] = await run_command(server, "sessions", "list")
        assert (code, session["id"]) == (0, "talk")
        code, facts = await run_command(server, "doctor", "--server", server.url)
        assert (code, facts["ready"], facts["role"], facts["problem"]) == (0, True, "admin", None)
        code, error = await run_command(server, "runs", "show", "run_unknown")
        assert (code, error["error"]["code"]) == (5, "not-found")
