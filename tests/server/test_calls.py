"""Calls: a page speaks with a realtime agent over a WebSocket that may be lost."""

import asyncio
import base64
import json
import math
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from factories.server import PEOPLE, open_server
from standfast import function_tool
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime.local import CallTool, EnergyDetector
from standfast.server import Role


@function_tool(needs_approval=True)
def credit(amount: int) -> str:
    """Give money back."""
    return f"credited {amount}"


def make_runner():
    agent = RealtimeAgent(name="concierge", instructions="Be kind.", tools=[credit])
    return RealtimeRunner(agent, model=LocalRealtimeModel(["We are open until six.", "Until seven tomorrow."]))


@pytest.fixture
async def server(tmp_path):
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", calls={"concierge": make_runner}) as opened:
        yield opened


@asynccontextmanager
async def dial(server, path="/calls?agent=concierge", person="ann", **options):
    url = server.url.replace("http://", "ws://") + path
    async with connect(url, proxy=None, additional_headers={"authorization": f"Bearer {person}"}, **options) as socket:
        yield socket


async def receive(socket, kind):
    """Return the messages up to the first of this type."""
    messages = []
    while not messages or messages[-1]["type"] != kind:
        messages.append(json.loads(await socket.recv()))
    return messages


async def wait_until_closed(socket):
    """Read everything and return the close code."""
    with suppress(ConnectionClosed):
        while True:
            await socket.recv()
    return socket.close_code


async def test_a_page_writes_and_hears_an_answer(server):
    async with dial(server, "/calls?agent=concierge&session_id=talk") as socket:
        [call] = await receive(socket, "call")
        await socket.send(json.dumps({"type": "text", "text": "When do you close?"}))
        messages = await receive(socket, "agent_end")
        heard = b"".join(base64.b64decode(one["data"]) for one in messages if one["type"] == "audio")
        assert len(heard) > 1000
        words = "".join(one["delta"] for one in messages if one["type"] == "transcript_delta")
        assert words == "We are open until six."
        [question] = next(one["items"] for one in messages if one["type"] == "history_updated" and one["items"])
        assert question["content"][0]["text"] == "When do you close?"
        times = [one["at"] for one in messages]
        assert times == sorted(times)
        numbers = [one["number"] for one in messages]
        assert numbers == sorted(numbers)
        [listed] = (await server.sign_in("ann").get("/calls")).json()
        assert (listed["call_id"], listed["session_id"], listed["connected"]) == (call["call_id"], "talk", True)
        await socket.send(json.dumps({"type": "hang_up"}))
        assert await wait_until_closed(socket) == 1000
    items = await server.runtime.session("talk").get_items()
    assert [item["role"] for item in items] == ["user", "assistant"]
    assert (await server.runtime.store.describe("talk")).owner == "ann"


async def test_a_lost_connection_continues_the_same_call(server):
    async with dial(server) as socket:
        [call] = await receive(socket, "call")
        await socket.send(json.dumps({"type": "text", "text": "When do you close?"}))
        first = await receive(socket, "agent_end")
        socket.transport.abort()
    async with dial(server, f"/calls/{call['call_id']}?after={first[-1]['number']}") as socket:
        [again] = await receive(socket, "call")
        assert again["session_id"] == call["session_id"]
        await socket.send(json.dumps({"type": "text", "text": "And tomorrow?"}))
        rest = await receive(socket, "agent_end")
        words = "".join(one["delta"] for one in rest if one["type"] == "transcript_delta")
        assert words == "Until seven tomorrow."
        assert min(one["number"] for one in rest if "number" in one) > first[-1]["number"]
        await socket.send(json.dumps({"type": "hang_up"}))


async def test_a_second_page_takes_the_call_over(server):
    async with dial(server) as first:
        [call] = await receive(first, "call")
        async with dial(server, f"/calls/{call['call_id']}") as second:
            await receive(second, "call")
            assert await wait_until_closed(first) == 4001
            await second.send(json.dumps({"type": "hang_up"}))


async def test_others_neither_join_nor_see_a_call(server):
    async with dial(server) as socket:
        [call] = await receive(socket, "call")
        for person, status in (("bob", 404), ("ann-viewer", 403), ("eve", 404)):
            with pytest.raises(InvalidStatus) as refused:
                async with dial(server, f"/calls/{call['call_id']}", person):
                    pass
            assert refused.value.response.status_code == status
        assert (await server.sign_in("bob").get("/calls")).json() == []
        assert (await server.sign_in("bob").get(f"/calls/{call['call_id']}")).status_code == 404
        assert (await server.sign_in("eve").get(f"/calls/{call['call_id']}")).status_code == 200
        with pytest.raises(InvalidStatus) as refused:
            async with dial(server, origin="https://evil.example"):
                pass
        assert refused.value.response.status_code == 403
        await socket.send(json.dumps({"type": "hang_up"}))


@pytest.mark.parametrize(
    "message", ["{}", "no json", '{"type":"text"}', '{"type":"text","text":"x","more":1}', b"\x00"]
)
async def test_a_message_that_is_not_understood_is_refused_and_the_call_continues(server, message):
    async with dial(server) as socket:
        await socket.send(message)
        refused = (await receive(socket, "refused"))[-1]
        assert refused["code"]
        await socket.send(json.dumps({"type": "decide", "call_id": "c", "decision": "approve"}))
        assert "approver" in (await receive(socket, "refused"))[-1]["message"]
        await socket.send(json.dumps({"type": "text", "text": "When do you close?"}))
        await receive(socket, "agent_end")
        await socket.send(json.dumps({"type": "hang_up"}))


async def test_a_watcher_gets_the_transcript_without_the_audio(server):
    async with dial(server) as socket:
        [call] = await receive(socket, "call")
        await socket.send(json.dumps({"type": "text", "text": "When do you close?"}))
        await receive(socket, "agent_end")
        await socket.send(json.dumps({"type": "hang_up"}))
        eve = server.sign_in("eve")
        async with eve.http.stream("GET", f"/calls/{call['call_id']}/events") as response:
            text = (await response.aread()).decode()
    assert "transcript_delta" in text
    assert 'data: {"type":"audio"' not in text


async def test_who_continues_a_call_decides_with_a_role_of_their_own(server, monkeypatch):
    monkeypatch.setitem(PEOPLE, "eve-user", ("eve", Role.USER))
    async with dial(server, person="eve") as first:
        call = json.loads(await first.recv())["call_id"]
        async with dial(server, f"/calls/{call}", person="eve-user") as second:
            await second.send(json.dumps({"type": "decide", "call_id": "c", "decision": "approve"}))
            refused = (await receive(second, "refused"))[-1]
            assert "needs the role approver" in refused["message"]
    [denied] = await server.app.state.service.audit.list(action="denied")
    assert (denied.subject, denied.details["tool_call"]) == ("eve-user", "c")


async def test_garbage_is_refused_and_the_call_continues(server):
    async with dial(server) as socket:
        for garbage in ("", "{", "[" * 100_000, '{"type":"unknown"}', '{"type":"text","text":5}', b"odd"):
            await socket.send(garbage)
            await receive(socket, "refused")
        await socket.send(json.dumps({"type": "hang_up"}))
        assert await wait_until_closed(socket) == 1000


@pytest.mark.parametrize("way", ["socket", "request"])
async def test_a_decision_in_a_call_is_made_and_recorded(tmp_path, way):
    def make_deciding_runner():
        agent = RealtimeAgent(name="concierge", tools=[credit])
        return RealtimeRunner(agent, model=LocalRealtimeModel([CallTool("credit", {"amount": 5}), "Done."], pace=None))

    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", calls={"concierge": make_deciding_runner}) as server:
        async with dial(server, person="eve") as socket:
            [call] = await receive(socket, "call")
            await socket.send(json.dumps({"type": "text", "text": "Five back, please."}))
            asked = (await receive(socket, "tool_approval_required"))[-1]
            decision = {"type": "decide", "call_id": asked["call_id"], "decision": "approve"}
            if way == "socket":
                await socket.send(json.dumps(decision))
            else:
                answer = await server.sign_in("olga").post(f"/calls/{call['call_id']}/decide", decision)
                assert answer.json() is True
            done = (await receive(socket, "tool_end"))[-1]
            assert done["output"] == "credited 5"
            await socket.send(json.dumps({"type": "hang_up"}))
            assert await wait_until_closed(socket) == 1000
        [entry] = await server.app.state.service.audit.list(action="decided")
        assert entry.subject == ("eve" if way == "socket" else "olga")
        assert entry.details == {"call": call["call_id"], "tool_call": asked["call_id"], "decision": "approve"}


async def test_a_caller_speaks_and_interrupts(tmp_path):
    def make_long_runner():
        model = LocalRealtimeModel(["One moment. " * 50, "Yes?"], detector=EnergyDetector)
        return RealtimeRunner(RealtimeAgent(name="concierge"), model=model)

    calls = {"concierge": make_long_runner}
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", calls=calls) as server, dial(server) as socket:
        await receive(socket, "call")
        await speak(socket)
        await receive(socket, "audio")
        await socket.send(json.dumps({"type": "interrupt"}))
        await receive(socket, "audio_interrupted")
        await speak(socket)
        words = ""
        async with asyncio.timeout(60):
            while "Yes?" not in words:  # what was said before it has more words under way
                words += (await receive(socket, "transcript_delta"))[-1]["delta"]
        await socket.send(json.dumps({"type": "hang_up"}))


async def speak(socket):
    """Send a second of a tone and a second of silence, as a microphone would."""
    tone = b"".join(round(8000 * math.sin(number / 10)).to_bytes(2, "little", signed=True) for number in range(24_000))
    for second in (tone, bytes(len(tone))):
        for start in range(0, len(second), 4800):
            await socket.send(second[start : start + 4800])
