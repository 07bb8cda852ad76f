"""Streams and calls end with the credential that opened them, and with its access to what they show."""

import asyncio
import contextlib
import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from factories.server import Names, open_server
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.server import ApiKeys, Limits


def make_runner():
    return RealtimeRunner(RealtimeAgent(name="concierge"), model=LocalRealtimeModel(["Good day."]))


@pytest.fixture
async def server(tmp_path):
    async with open_server(
        f"sqlite:///{tmp_path / 'app.db'}",
        auth=(ApiKeys, Names()),
        limits=Limits(heartbeat=0.1),
        calls={"concierge": make_runner},
    ) as opened:
        yield opened


async def create_key(server):
    body = {"name": "laptop", "role": "user", "owner": "ann"}
    return (await server.sign_in("root").post("/keys", body)).json()


async def revoke(server, key):
    assert (await server.sign_in("root").http.delete(f"/keys/{key['key']['id']}")).status_code == 200


@pytest.mark.parametrize("path", ["/approvals/events", "/runs/{run}/events"])
async def test_a_stream_ends_when_its_key_is_revoked(server, path):
    key = await create_key(server)
    holder = server.sign_in(key["secret"])
    run = (await holder.post("/runs", {"agent": "desk", "input": "refund", "session_id": "talk"})).json()["run_id"]
    async with holder.http.stream("GET", path.format(run=run)) as answer, asyncio.timeout(60):
        lines = answer.aiter_lines()
        async for line in lines:
            if line == ": alive":  # it is open, and its key is good
                break
        await revoke(server, key)
        rest = [line async for line in lines]  # it ends, and not with the event that says that there is no more
    assert "event: end" not in rest
    assert (await holder.get("/info")).json()["code"] == "key-revoked"


async def test_a_stream_ends_when_the_session_is_given_to_another_owner(server):
    ann = server.sign_in("ann")
    run = (await ann.post("/runs", {"agent": "desk", "input": "refund", "session_id": "talk"})).json()["run_id"]
    async with ann.http.stream("GET", f"/runs/{run}/events") as answer, asyncio.timeout(60):
        lines = answer.aiter_lines()
        async for line in lines:
            if line == ": alive":
                break
        assert (await server.sign_in("root").http.put("/sessions/talk/owner", json={"owner": "bob"})).is_success
        assert "event: end" not in [line async for line in lines]
    assert (await ann.get(f"/runs/{run}")).status_code == 404


async def test_a_call_loses_its_page_when_the_key_is_revoked(server):
    key = await create_key(server)
    url = server.url.replace("http://", "ws://") + "/calls?agent=concierge"
    headers = {"authorization": f"Bearer {key['secret']}"}
    async with connect(url, proxy=None, additional_headers=headers) as socket, asyncio.timeout(60):
        assert json.loads(await socket.recv())["type"] == "call"
        await revoke(server, key)
        with contextlib.suppress(ConnectionClosed):
            while True:
                await socket.recv()
    assert socket.close_code == 4401
