"""``standfast serve`` as a process: started, killed, drained."""

import asyncio
import json
import os
import re
import signal
import sys

import pytest

from factories.issuer import AUDIENCE
from factories.proxy import CuttingProxy
from factories.serve_process import AGENTS, list_children, start_server
from standfast import StandfastError
from standfast.cli.commands.serve import run_workers
from standfast.client import Client
from standfast.client.runs import RemoteRun
from standfast.server.process import listen

WORDS = [f"word{number}" for number in range(30)]


async def test_cells_of_users_are_refused_with_several_processes(tmp_path):
    """A request for a cell would reach any of them."""
    arguments = ["-m", "standfast", "serve", str(AGENTS), "--store", f"sqlite:///{tmp_path / 'app.db'}"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, "--port", "0", "--python", "--workers", "2", stderr=asyncio.subprocess.PIPE
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), 120)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
    assert process.returncode == 2
    assert b"--python" in errors
    assert b"--workers 1" in errors


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path / 'app.db'}"


async def test_a_run_is_served_and_each_delta_arrives_once(store):
    async with start_server(store) as server, server.client as client:
        assert [agent.name for agent in await client.agents()] == ["speaker"]
        run = await client.start("speaker", "talk")
        events = [event async for event in run.events(until="end")]
        assert [event.seq for event in events if not event.live] == list(range(1, (await run.info()).steps + 1))
        words = [event.data["delta"] for event in events if event.live and "delta" in event.data]
        assert "".join(words).split() == WORDS


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


@pytest.mark.parametrize("victim", ["driver", "reader"])
async def test_of_two_servers_on_postgresql_either_is_killed_in_mid_stream(postgres_tables_url, victim):
    """A balancer in front of both sends the reader to the one that is left."""
    token = "t" * 40
    async with (
        start_server(postgres_tables_url, token=token) as driver,
        start_server(postgres_tables_url, token=token) as reader,
        CuttingProxy(reader.port, lambda: lambda seen: False).listen() as balancer,
        Client(balancer.url, token=token) as client,
        driver.client as starter,
    ):
        run_id = (await starter.start("speaker", "talk")).id
        received = []

        async def read():
            async for event in RemoteRun(client, run_id).events(until="end"):
                received.append(event)

        reading = asyncio.ensure_future(read())
        while sum(event.live for event in received) < 5:
            await asyncio.sleep(0.01)
        killed, left = (driver, reader) if victim == "driver" else (reader, driver)
        balancer.target = left.port
        killed.process.kill()
        await reading
        info = await client.get_run_info(run_id)
    assert info.status == "completed"
    assert [event.seq for event in received if not event.live] == list(range(1, info.steps + 1))
    if all(event.type != "run.recovered" for event in received):
        # No word is lost or repeated. Only a response that died with the process that drove the run is made again.
        words = "".join(event.data["delta"] for event in received if event.live and "delta" in event.data)
        assert words.split() == WORDS


async def test_processes_end_when_the_command_is_cancelled(store):
    loop = asyncio.get_running_loop()
    with listen("127.0.0.1", 0) as listener:
        words = ["serve", str(AGENTS), "--store", store, "--workers", "2"]
        others = set(list_children(os.getpid()))
        serving = asyncio.ensure_future(run_workers(2, listener, words, None, as_json=True))
        try:
            while len(pids := set(list_children(os.getpid())) - others) < 2:
                await asyncio.sleep(0.01)
            serving.cancel()
            await asyncio.wait({serving})
            assert not pids & set(list_children(os.getpid()))
        finally:
            for sig in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(sig)


async def test_tokens_of_an_identity_provider_are_accepted(store, issuer):
    options = ("--oidc-issuer", issuer.url, "--oidc-audience", AUDIENCE, "--oidc-role", "desk=approver")
    token = issuer.sign(roles=["staff", "desk"])
    async with start_server(store, *options) as server, Client(server.url, token=token) as person:
        info = await person.info()
        assert (info.subject, info.owner, info.role) == ("oidc:u1", "u1", "approver")
        async with server.client as local:  # the token of this machine counts as well
            assert (await local.info()).role == "admin"
        async with Client(server.url, token=issuer.sign(roles=["staff"])) as other:
            with pytest.raises(StandfastError) as refused:
                await other.info()
        assert refused.value.code == "role-missing"


@pytest.mark.parametrize(
    "options",
    [
        ["--oidc-issuer", "https://login.example.com"],
        ["--oidc-audience", "here"],
        ["--oidc-issuer", "https://login.example.com", "--oidc-audience", "here", "--oidc-role", "approver"],
        ["--oidc-issuer", "https://login.example.com", "--oidc-audience", "here", "--oidc-role", "desk=boss"],
    ],
)
async def test_incomplete_options_of_an_identity_provider_are_refused(store, command_process, tmp_path, options):
    words = ("-m", "standfast", "serve", str(AGENTS), "--store", store, "--port", "0", *options)
    ended = await asyncio.to_thread(command_process.run, *words, directory=tmp_path, environment=dict(os.environ))
    assert ended.returncode == 2, ended.stderr


async def test_an_address_of_other_machines_needs_the_names_of_its_hosts(store):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "standfast", "serve", str(AGENTS), "--store", store, "--host", "0.0.0.0", "--port", "0"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert b"--allowed-host" in errors


async def test_several_processes_that_cannot_start_end_the_command(store):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "standfast", "serve", "missing.py", "--store", store, "--port", "0", "--workers", "2"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await process.communicate()
    assert process.returncode == 5
    assert b"missing.py" in errors


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    "place", [("--allowed-host", "api.example.org"), ("--host", "0.0.0.0", "--allowed-host", "localhost")]
)
async def test_no_token_is_printed_where_no_token_is_accepted(store, workers, place):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "standfast", "serve", str(AGENTS), "--store", store, "--port", "0", "--workers", workers),
        *place,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed = await process.stdout.readline()
    process.terminate()
    await process.communicate()
    assert re.fullmatch(rb"http://[0-9.]+:\d+\n", printed)


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
        code, made = await run_command(server, "keys", "create", "laptop", "--owner", "ann")
        assert (code, made["created_by"]) == (0, "local")
        code, _ = await run_command(server, "keys", "revoke", made["id"])
        code, [key] = await run_command(server, "keys", "list")
        assert (code, key["status"]) == (0, "revoked")
        code, [latest, *_] = await run_command(server, "audit", "list")
        assert (code, latest["action"]) == (0, "key revoked")
        code, fleet = await run_command(server, "fleet", "status", "--no-nodes")
        assert (code, len(fleet["runtimes"])) == (0, 1)
        assert await run_command(server, "workspaces", "list") == (0, [])
        code, exported = await run_command(server, "sessions", "export", "talk", "--output", "talk.jsonl")
        assert (code, exported["items"]) == (0, session["items"])
        code, imported = await run_command(server, "sessions", "import", "talk.jsonl", "--as", "copy")
        assert (code, imported["id"], imported["items"]) == (0, "copy", session["items"])
        for words in (
            ("owners", "status"),
            ("audit", "prune", "--older-than", "1d"),
            ("export", "openai-agents", "x.db"),
        ):
            code, error = await run_command(server, *words)
            assert (code, "--store" in error["error"]["message"]) == (2, True)
        code, error = await run_command(server, "runs", "show", "run_unknown")
        assert (code, error["error"]["code"]) == (5, "not-found")
