"""What passed on a connection can be written down, and played again to either side."""

import asyncio
import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from realtime.test_websocket_model import Ear, at
from realtime.wire import USER
from standfast.base.errors import InvalidInput
from standfast.realtime import (
    ConnectFailed,
    LocalRealtimeModel,
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeModel,
    RealtimeModelSendAudio,
    RealtimeModelSendRawMessage,
    RealtimeModelSendUserInput,
    RealtimeRunner,
    Recording,
    ReplayDiverged,
    ReplayedRealtimeModel,
    read_recording,
    replay_client,
)
from standfast.realtime.local import Pause, ToneTTS
from standfast.realtime.openai.recording import redact
from standfast.realtime.openai.replay import ReplayTransport
from standfast.realtime.openai.transport import TransportClosed
from standfast.testing import RealtimeServer
from standfast.testing.realtime.faults import Discard, Disconnect, Insert
from standfast.testing.virtual_time import run_in_virtual_time


async def recorded(path: Path, *, audio: bool = False) -> Ear:
    """Two connections with a turn each, the second with a broken frame."""
    ear = Ear()
    model = OpenAIRealtimeWebSocketModel(recording=Recording(path, audio=audio))
    model.add_listener(ear)
    async with RealtimeServer(["Good morning.", "And again."]) as server:
        server.inject("response.created", Insert("{ nonsense"), connection=1)
        for count in (1, 2):
            await model.connect(at(server, api_key="sk-secret"))
            await model.send_event(RealtimeModelSendAudio(bytes(480)))
            await model.send_event(RealtimeModelSendUserInput("Hi"))
            await ear.until("turn_ended", count)
            await model.close()
    return ear


async def test_both_directions_are_written_down(tmp_path: Path) -> None:
    await recorded(tmp_path / "call.jsonl")
    first, second = read_recording(tmp_path / "call.jsonl")
    assert first[0].way == "opened"
    assert [entry.type for entry in first if entry.way == "sent"] == [
        "session.update",
        "input_audio_buffer.append",
        "conversation.item.create",
        "response.create",
    ]
    assert "response.done" in [entry.type for entry in first if entry.way == "received"]
    assert (first[-1].way, first[-1].code) == ("closed", 1000)
    assert "{ nonsense" in [entry.text for entry in second]
    times = [entry.at for entry in (*first, *second)]
    assert times == sorted(times)
    text = (tmp_path / "call.jsonl").read_text()
    assert "sk-secret" not in text
    assert (tmp_path / "call.jsonl").stat().st_mode & 0o077 == 0
    assert "[480 bytes of audio]" in text


async def test_a_recording_plays_to_a_model(tmp_path: Path) -> None:
    original = await recorded(tmp_path / "call.jsonl", audio=True)
    ear, model = Ear(), ReplayedRealtimeModel(tmp_path / "call.jsonl")
    model.add_listener(ear)
    for count in (1, 2):
        await model.connect({})
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await ear.until("turn_ended", count)
        await ear.until("end_of_stream", count)
        await model.close()
    for kind in ("audio", "transcript_delta", "turn_started", "turn_ended", "usage", "item_updated"):
        assert ear.of(kind) == original.of(kind), kind
    assert ear.of("error")[0].error.problem == original.of("error")[0].error.problem
    with pytest.raises(ConnectFailed, match="no further"):
        await model.connect({})


async def test_audio_that_was_left_out_plays_as_silence(tmp_path: Path) -> None:
    original = await recorded(tmp_path / "call.jsonl")
    ear, model = Ear(), ReplayedRealtimeModel(tmp_path / "call.jsonl")
    model.add_listener(ear)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")
    await model.close()
    lengths = [len(event.data) for event in ear.of("audio")]
    assert lengths == [len(event.data) for event in original.of("audio")][: len(lengths)]
    assert not any(byte for event in ear.of("audio") for byte in event.data)


async def test_a_program_that_says_something_else_is_told_where(tmp_path: Path) -> None:
    await recorded(tmp_path / "call.jsonl")
    ear, model = Ear(), ReplayedRealtimeModel(tmp_path / "call.jsonl", timeout=0.1)
    model.add_listener(ear)
    await model.connect({})
    await model.send_event(RealtimeModelSendRawMessage({"type": "input_audio_buffer.clear"}))
    await ear.until("end_of_stream")
    cause = ear.of("connection_status")[-1].error.__cause__
    assert isinstance(cause, ReplayDiverged)
    assert (cause.expected, cause.received) == ("conversation.item.create", ("input_audio_buffer.clear",))
    await model.close()


async def test_a_replay_that_diverges_later_names_the_line_of_the_file(tmp_path: Path) -> None:
    await recorded(tmp_path / "call.jsonl")
    ear = Ear()
    model = ReplayedRealtimeModel(tmp_path / "call.jsonl", timeout=0.05)
    await model.connect({})
    await model.close()
    model.add_listener(ear)
    await model.connect({})
    await ear.until("end_of_stream")
    cause = ear.of("connection_status")[-1].error.__cause__
    assert isinstance(cause, ReplayDiverged)
    first, _ = read_recording(tmp_path / "call.jsonl")
    assert cause.line > len(first)
    line = (tmp_path / "call.jsonl").read_text().splitlines()[cause.line - 1]
    assert json.loads(line)["frame"]["type"] == cause.expected
    await model.close()


def _counted(kinds: Iterable[str | None]) -> list[str]:
    """Those that come as often each time: pieces differ, and what follows the last message may have been cut off."""
    return [kind for kind in kinds if kind and not kind.endswith((".delta", "rate_limits.updated"))]


async def test_a_recording_plays_to_a_server(tmp_path: Path) -> None:
    await recorded(tmp_path / "call.jsonl")
    first, _ = read_recording(tmp_path / "call.jsonl")
    async with RealtimeServer(["Good morning."]) as server:
        link = await OpenAIRealtimeWebSocketModel().open_transport(at(server))
        said = await replay_client(link, first)
        await link.close()
        conversation = server.connections[0]
    kinds = [entry.type for entry in first if entry.way == "received"]
    assert _counted(message["type"] for message in said) == _counted(kinds)
    assert len(conversation.get_received("input_audio_buffer.append")) == 1


async def test_names_of_the_server_replace_the_recorded_ones(tmp_path: Path) -> None:
    path = tmp_path / "call.jsonl"
    lines: list[dict[str, Any]] = [
        {"at": 0, "way": "opened"},
        {"at": 0, "way": "received", "frame": {"type": "session.created", "session": {}}},
        {"at": 0, "way": "sent", "frame": {"type": "conversation.item.create", "item": USER}},
        {"at": 0, "way": "received", "frame": {"type": "conversation.item.added", "item": {"id": "old"}}},
        {"at": 0, "way": "sent", "frame": {"type": "conversation.item.delete", "item_id": "old"}},
        {"at": 0, "way": "received", "frame": {"type": "conversation.item.deleted", "item_id": "old"}},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    async with RealtimeServer() as server:
        link = await OpenAIRealtimeWebSocketModel().open_transport(at(server))
        said = await replay_client(link, read_recording(path)[0], timeout=2)
        await link.close()
    assert said[-1]["type"] == "conversation.item.deleted"


async def test_the_pace_of_a_recording_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "call.jsonl"
    lines: list[dict[str, Any]] = [
        {"at": 0, "way": "received", "frame": {"type": "session.updated", "session": {}}},
        {"at": 0.2, "way": "received", "frame": {"type": "input_audio_buffer.speech_stopped"}},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    for speed, least in ((1.0, 0.2), (4.0, 0.05)):
        ear, model = Ear(), ReplayedRealtimeModel(path, speed=speed)
        model.add_listener(ear)
        began = asyncio.get_running_loop().time()
        await model.connect({})
        await ear.until("speech_stopped")
        assert asyncio.get_running_loop().time() - began >= least * 0.95
        await model.close()


def _line(at: float, way: str, kind: str, **parts: Any) -> str:
    return json.dumps({"at": at, "way": way, "frame": {"type": kind, **parts}})


def _call_with_a_slow_tool(path: Path) -> None:
    """Ten times: the server asks after a second, the program answers two seconds later."""
    lines = [json.dumps({"at": 0.0, "way": "opened"})]
    for turn in range(10):
        lines.append(_line(3 * turn + 1.0, "received", "asked", number=turn))
        lines.append(_line(3 * turn + 3.0, "sent", "answered", number=turn))
    path.write_text("\n".join([*lines, json.dumps({"at": 31.0, "way": "closed", "code": 1000, "reason": ""})]))


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_a_replay_takes_as_long_as_the_call_although_it_waits_for_the_program(tmp_path: Path, speed: float) -> None:
    _call_with_a_slow_tool(tmp_path / "call.jsonl")
    [entries] = read_recording(tmp_path / "call.jsonl")

    async def play() -> float:
        link, loop = ReplayTransport(entries, speed=speed), asyncio.get_running_loop()
        began = loop.time()
        with suppress(TransportClosed):
            while True:
                await link.receive()
                loop.call_later(2 / speed, lambda: asyncio.ensure_future(link.send(b'{"type": "answered"}')))
        return loop.time() - began

    assert run_in_virtual_time(play()) == pytest.approx(30 / speed, abs=0.1)


@pytest.mark.parametrize("speed", [0.2, 1.0, 5.0])
def test_a_pause_of_the_call_is_no_divergence_however_long_it_takes_to_play(tmp_path: Path, speed: float) -> None:
    path = tmp_path / "call.jsonl"

    async def talk(model: RealtimeModel, ear: Ear, speed: float) -> Ear:
        model.add_listener(ear)
        await model.connect({})
        for _ in range(2):
            await asyncio.sleep(30 / speed)
            await model.send_event(RealtimeModelSendUserInput("Hi"))
        await asyncio.sleep(30 / speed)
        await model.close()
        return ear

    async def record() -> Ear:
        recording = Recording(path, clock=asyncio.get_running_loop().time)
        return await talk(LocalRealtimeModel([[Pause(9), "One."], "Two."], recording=recording), Ear(), 1.0)

    async def play() -> Ear:
        return await talk(ReplayedRealtimeModel(path, speed=speed), Ear(), speed)

    original, replayed = run_in_virtual_time(record()), run_in_virtual_time(play())
    for kind in ("turn_started", "turn_ended", "error"):
        assert replayed.of(kind) == original.of(kind), kind


async def test_a_request_that_was_repeated_is_repeated_when_it_is_played(tmp_path: Path) -> None:
    async with RealtimeServer(["Good morning."]) as server:
        server.inject("response.create", Discard())
        recording = Recording(tmp_path / "call.jsonl")
        live = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 1.0}, recording=recording)
        for model in (live, None):
            ear, model = Ear(), model or ReplayedRealtimeModel(tmp_path / "call.jsonl", timeout=2.0)
            model.add_listener(ear)
            await model.connect(at(server))
            await model.send_event(RealtimeModelSendUserInput("Hi"))
            assert (await ear.until("turn_ended")).status == "completed"
            await model.close()


def test_a_replay_waits_for_a_server_as_long_as_the_call_did(tmp_path: Path) -> None:
    (tmp_path / "call.jsonl").write_text(
        "\n".join([_line(0.0, "sent", "asked"), _line(30.0, "received", "answered"), _line(31.0, "sent", "asked")])
    )
    [entries] = read_recording(tmp_path / "call.jsonl")

    class Slow:
        async def send(self, frame: bytes) -> None: ...

        async def receive(self) -> bytes:
            await asyncio.sleep(30)
            return b'{"type": "answered"}'

        async def close(self) -> None: ...

    assert len(run_in_virtual_time(replay_client(Slow(), entries, speed=1.0))) == 1


def test_a_replay_to_a_server_takes_as_long_as_the_call_although_it_waits_for_the_server(tmp_path: Path) -> None:
    _call_with_a_slow_tool(tmp_path / "call.jsonl")
    [entries] = read_recording(tmp_path / "call.jsonl")

    class Server:
        """Asks a second after each answer, and first of all."""

        async def send(self, frame: bytes) -> None: ...

        async def receive(self) -> bytes:
            await asyncio.sleep(1.0)
            return b'{"type": "asked"}'

        async def close(self) -> None: ...

    async def play() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await replay_client(Server(), entries, speed=1.0)
        return loop.time() - began

    assert run_in_virtual_time(play()) == pytest.approx(30, abs=0.1)


def test_secrets_are_not_written_down() -> None:
    tool = {"type": "mcp", "authorization": "tok", "headers": {"X-Api-Key": "k"}, "server_url": "https://x"}
    message = {"type": "session.update", "session": {"tools": [tool], "max_output_tokens": 7}}
    assert redact(message)["session"] == {
        "tools": [
            {
                "type": "mcp",
                "authorization": "[redacted]",
                "headers": "[redacted]",
                "server_url": "https://x",
            }
        ],
        "max_output_tokens": 7,
    }
    ephemeral = {"type": "session.created", "session": {"client_secret": {"value": "ek"}, "id": "s"}}
    assert redact(ephemeral)["session"] == {"client_secret": "[redacted]", "id": "s"}


@pytest.mark.parametrize("audio", [False, True])
async def test_audio_inside_items_is_written_down_only_if_that_is_asked_for(tmp_path: Path, audio: bool) -> None:
    voice = base64.b64encode(b"a voice of somebody").decode()
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": voice}]}
    async with RealtimeServer() as server:
        model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl", audio=audio))
        await model.connect(at(server))
        create = {"type": "conversation.item.create", "other_data": {"item": item}}
        await model.send_event(RealtimeModelSendRawMessage(create))
        await server.connections[0].wait_for_frame("conversation.item.create")
        await model.close()
    assert (voice in (tmp_path / "call.jsonl").read_text()) is audio
    (entries,) = read_recording(tmp_path / "call.jsonl")
    (sent,) = [entry for entry in entries if entry.way == "sent" and entry.type == "conversation.item.create"]
    silent = base64.b64encode(bytes(19)).decode()
    assert json.loads(sent.as_frame())["item"]["content"][0]["audio"] == (voice if audio else silent)


@pytest.mark.parametrize("code", [1000, 1006, 1011])
async def test_a_connection_that_was_lost_is_lost_again_when_it_is_played(tmp_path: Path, code: int) -> None:
    ends = []
    async with RealtimeServer(["Good morning."]) as server:
        server.inject("response.output_audio.delta", Disconnect(code))
        live = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl"))
        for model in (live, None):
            ear, model = Ear(), model or ReplayedRealtimeModel(tmp_path / "call.jsonl")
            model.add_listener(ear)
            await model.connect(at(server))
            await model.send_event(RealtimeModelSendUserInput("Hi"))
            await ear.until("end_of_stream")
            await model.close()
            ends.append((ear.of("connection_status")[-1].code, str(ear.of("connection_status")[-1].error)))
    assert ends[0] == ends[1]
    assert (ends[0][1] == "None") is (code == 1000)


async def test_a_recording_whose_program_was_killed_plays_up_to_there(tmp_path: Path) -> None:
    await recorded(tmp_path / "call.jsonl")
    whole = (tmp_path / "call.jsonl").read_bytes()
    before = [entry for connection in read_recording(tmp_path / "call.jsonl") for entry in connection]
    (tmp_path / "cut.jsonl").write_bytes(whole[:-20] + "é".encode()[:1])
    assert [entry for connection in read_recording(tmp_path / "cut.jsonl") for entry in connection] == before[:-1]


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"at": 1, "way": "sent", "colour": "red"}'])
def test_a_file_that_is_no_recording(tmp_path: Path, line: str) -> None:
    path = tmp_path / "call.jsonl"
    path.write_text('{"at": 0, "way": "opened"}\n' + line + "\n")
    with pytest.raises(InvalidInput, match="line 2"):
        read_recording(path)


async def test_a_recording_that_cannot_begin_keeps_the_model_from_connecting(tmp_path: Path) -> None:
    model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "nowhere" / "call.jsonl"))
    async with RealtimeServer() as server:
        with pytest.raises(FileNotFoundError):
            await model.connect(at(server))
        assert server.connections == []


async def test_a_connection_that_did_not_come_about_is_written_down(tmp_path: Path) -> None:
    model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl"))
    with pytest.raises(ConnectFailed):
        await model.connect({"url": "ws://127.0.0.1:9/", "api_key": "k"})
    (attempt,) = read_recording(tmp_path / "call.jsonl")
    assert [(entry.way, entry.reason) for entry in attempt] == [("opened", ""), ("closed", "connecting failed")]


async def test_a_full_disk_ends_the_recording_and_not_the_call(caplog: pytest.LogCaptureFixture) -> None:
    ear, model = Ear(), OpenAIRealtimeWebSocketModel(recording=Recording("/dev/full"))
    model.add_listener(ear)
    async with RealtimeServer(["Good morning."]) as server:
        await model.connect(at(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await ear.until("turn_ended")
        await model.close()
    assert "the recording /dev/full ends here" in caplog.text


@pytest.mark.parametrize("where", ["in-process", "websocket"])
async def test_a_recording_plays_to_a_session(tmp_path: Path, where: str) -> None:
    path = tmp_path / "call.jsonl"

    async def talk(model: RealtimeModel, options: Any) -> list[str]:
        runner = RealtimeRunner(RealtimeAgent(name="Host", instructions="Greet."), model=model)
        heard = []
        async with await runner.run(model_config=options) as session:
            await session.send_message("Hi")
            async for event in session:
                heard.append(event.type)
                if event.type == "agent_end":
                    break
            words = [part.transcript for item in session.history if item.role == "assistant" for part in item.content]
        assert words == ["Good morning."]
        return heard

    if where == "in-process":
        original = await talk(LocalRealtimeModel(["Good morning."], pace=None, recording=Recording(path)), {})
    else:
        async with RealtimeServer(["Good morning."]) as server:
            original = await talk(OpenAIRealtimeWebSocketModel(recording=Recording(path)), at(server))
    assert await talk(ReplayedRealtimeModel(path), {}) == original


async def test_a_recording_of_the_local_model_plays_to_any_server(tmp_path: Path) -> None:
    path, ear = tmp_path / "call.jsonl", Ear()
    model = LocalRealtimeModel(["Good morning."], tts=ToneTTS(), pace=None, recording=Recording(path))
    model.add_listener(ear)
    await model.connect({"api_key": "sk-secret"})
    await model.send_event(RealtimeModelSendAudio(bytes(480)))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")
    await model.close()
    assert "sk-secret" not in path.read_text()
    (entries,) = read_recording(path)
    assert (entries[0].way, entries[-1].way, entries[-1].code) == ("opened", "closed", 1000)
    assert "[480 bytes of audio]" in path.read_text()
    recorded_types = _counted(entry.type for entry in entries if entry.way == "received")
    async with RealtimeServer(["Good morning."]) as server:
        for link in (
            await LocalRealtimeModel(["Good morning."], tts=ToneTTS(), pace=None).open_transport({}),
            await OpenAIRealtimeWebSocketModel().open_transport(at(server)),
        ):
            said = await replay_client(link, entries)
            await link.close()
            assert _counted(message["type"] for message in said) == recorded_types


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://mcp.example.com/s/s3cret/mcp?token=s3cret", "https://mcp.example.com/[redacted]"),
        ("https://ann:s3cret@mcp.example.com:8080", "https://mcp.example.com:8080/[redacted]"),
        ("https://mcp.example.com", "https://mcp.example.com"),
        ("data:image/png;base64,AAAA", "data:image/png;base64,AAAA"),
    ],
)
def test_an_address_may_be_a_secret_and_only_its_host_is_kept(given: str, kept: str) -> None:
    message = {"type": "session.update", "session": {"tools": [{"type": "mcp", "server_url": given}]}}
    assert redact(message)["session"]["tools"] == [{"type": "mcp", "server_url": kept}]
    picture = {"type": "conversation.item.create", "item": {"content": [{"type": "input_image", "image_url": given}]}}
    assert redact(picture)["item"]["content"][0]["image_url"] == kept


async def test_audio_that_is_none_does_not_end_the_call_that_is_recorded(tmp_path: Path) -> None:
    ear = Ear()
    model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl"))
    model.add_listener(ear)
    names = {"event_id": "e", "response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
    async with RealtimeServer(["Good morning."]) as server:
        server.inject("response.created", Insert({"type": "response.output_audio.delta", **names, "delta": "né"}))
        await model.connect(at(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await ear.until("turn_ended", 1)
        await model.close()
    [entries] = read_recording(tmp_path / "call.jsonl")
    assert "response.done" in [entry.type for entry in entries]
