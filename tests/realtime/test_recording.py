"""Recordings of connections and their replay to a model or a server."""

import asyncio
import base64
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from factories.realtime_protocol import USER, ModelEventRecorder, make_config
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
from standfast.testing.realtime.connection import Discard, Disconnect, Insert
from standfast.testing.virtual_time import run_in_virtual_time


async def record_two_connections(path: Path, *, audio: bool = False) -> ModelEventRecorder:
    """Record two connections with a turn each, the second with a malformed frame."""
    recorder = ModelEventRecorder()
    model = OpenAIRealtimeWebSocketModel(recording=Recording(path, audio=audio))
    model.add_listener(recorder)
    async with RealtimeServer(["Good morning.", "And again."]) as server:
        server.inject("response.created", Insert("{ nonsense"), connection=1)
        for count in (1, 2):
            await model.connect(make_config(server, api_key="sk-secret"))
            await model.send_event(RealtimeModelSendAudio(bytes(480)))
            await model.send_event(RealtimeModelSendUserInput("Hi"))
            await recorder.wait_for("turn_ended", count)
            await model.close()
    return recorder


async def test_both_directions_are_recorded(tmp_path: Path) -> None:
    await record_two_connections(tmp_path / "call.jsonl")
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


async def test_a_recording_can_be_replayed_to_a_model(tmp_path: Path) -> None:
    original = await record_two_connections(tmp_path / "call.jsonl", audio=True)
    recorder, model = ModelEventRecorder(), ReplayedRealtimeModel(tmp_path / "call.jsonl")
    model.add_listener(recorder)
    for count in (1, 2):
        await model.connect({})
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await recorder.wait_for("turn_ended", count)
        await recorder.wait_for("end_of_stream", count)
        await model.close()
    for kind in ("audio", "transcript_delta", "turn_started", "turn_ended", "usage", "item_updated"):
        assert recorder.of_type(kind) == original.of_type(kind), kind
    assert recorder.of_type("error")[0].error.problem == original.of_type("error")[0].error.problem
    with pytest.raises(ConnectFailed, match="no further"):
        await model.connect({})


async def test_omitted_audio_is_replayed_as_silence(tmp_path: Path) -> None:
    original = await record_two_connections(tmp_path / "call.jsonl")
    recorder, model = ModelEventRecorder(), ReplayedRealtimeModel(tmp_path / "call.jsonl")
    model.add_listener(recorder)
    await model.connect({})
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")
    await model.close()
    lengths = [len(event.data) for event in recorder.of_type("audio")]
    assert lengths == [len(event.data) for event in original.of_type("audio")][: len(lengths)]
    assert not any(byte for event in recorder.of_type("audio") for byte in event.data)


async def test_a_diverging_replay_names_the_line_and_the_expected_message(tmp_path: Path) -> None:
    await record_two_connections(tmp_path / "call.jsonl")
    recorder, model = ModelEventRecorder(), ReplayedRealtimeModel(tmp_path / "call.jsonl", timeout=2.0)
    model.add_listener(recorder)
    await model.connect({})
    await model.send_event(RealtimeModelSendRawMessage({"type": "input_audio_buffer.clear"}))
    await recorder.wait_for("end_of_stream")
    cause = recorder.of_type("connection_status")[-1].error.__cause__
    assert isinstance(cause, ReplayDiverged)
    assert (cause.expected, cause.received) == ("conversation.item.create", ("input_audio_buffer.clear",))
    await model.close()


async def test_a_replay_that_diverges_later_names_the_line_of_the_file(tmp_path: Path) -> None:
    await record_two_connections(tmp_path / "call.jsonl")
    recorder = ModelEventRecorder()
    model = ReplayedRealtimeModel(tmp_path / "call.jsonl", timeout=0.05)
    await model.connect({})
    await model.close()
    model.add_listener(recorder)
    await model.connect({})
    await recorder.wait_for("end_of_stream")
    cause = recorder.of_type("connection_status")[-1].error.__cause__
    assert isinstance(cause, ReplayDiverged)
    first, _ = read_recording(tmp_path / "call.jsonl")
    assert cause.line > len(first)
    line = (tmp_path / "call.jsonl").read_text().splitlines()[cause.line - 1]
    assert json.loads(line)["frame"]["type"] == cause.expected
    await model.close()


def _select_countable(kinds: Iterable[str | None]) -> list[str]:
    """Select the types whose number does not vary: deltas do, and frames after the last message may be missing."""
    return [kind for kind in kinds if kind and not kind.endswith((".delta", "rate_limits.updated"))]


async def test_a_recording_can_be_replayed_to_a_server(tmp_path: Path) -> None:
    await record_two_connections(tmp_path / "call.jsonl")
    first, _ = read_recording(tmp_path / "call.jsonl")
    async with RealtimeServer(["Good morning."]) as server:
        transport = await OpenAIRealtimeWebSocketModel().open_transport(make_config(server))
        messages = await replay_client(transport, first)
        await transport.close()
        conversation = server.connections[0]
    types = [entry.type for entry in first if entry.way == "received"]
    assert _select_countable(message["type"] for message in messages) == _select_countable(types)
    assert len(conversation.get_received("input_audio_buffer.append")) == 1


async def test_ids_of_the_server_replace_recorded_ids(tmp_path: Path) -> None:
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
        transport = await OpenAIRealtimeWebSocketModel().open_transport(make_config(server))
        messages = await replay_client(transport, read_recording(path)[0], timeout=60)
        await transport.close()
    assert messages[-1]["type"] == "conversation.item.deleted"


async def test_a_replay_keeps_the_recorded_pace(tmp_path: Path) -> None:
    path = tmp_path / "call.jsonl"
    lines: list[dict[str, Any]] = [
        {"at": 0, "way": "received", "frame": {"type": "session.updated", "session": {}}},
        {"at": 0.2, "way": "received", "frame": {"type": "input_audio_buffer.speech_stopped"}},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    for speed, minimum in ((1.0, 0.2), (4.0, 0.05)):
        recorder, model = ModelEventRecorder(), ReplayedRealtimeModel(path, speed=speed)
        model.add_listener(recorder)
        started_at = asyncio.get_running_loop().time()
        await model.connect({})
        await recorder.wait_for("speech_stopped")
        assert asyncio.get_running_loop().time() - started_at >= minimum * 0.95
        await model.close()


def _make_line(at: float, way: str, event_type: str, **fields: Any) -> str:
    return json.dumps({"at": at, "way": way, "frame": {"type": event_type, **fields}})


def _write_slow_call(path: Path) -> None:
    """Write a recording: ten times, the server asks after a second and the program answers two seconds later."""
    lines = [json.dumps({"at": 0.0, "way": "opened"})]
    for turn in range(10):
        lines.append(_make_line(3 * turn + 1.0, "received", "asked", number=turn))
        lines.append(_make_line(3 * turn + 3.0, "sent", "answered", number=turn))
    path.write_text("\n".join([*lines, json.dumps({"at": 31.0, "way": "closed", "code": 1000, "reason": ""})]))


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_waiting_for_the_program_does_not_lengthen_a_replay(tmp_path: Path, speed: float) -> None:
    _write_slow_call(tmp_path / "call.jsonl")
    [entries] = read_recording(tmp_path / "call.jsonl")

    async def replay() -> float:
        transport, loop = ReplayTransport(entries, speed=speed), asyncio.get_running_loop()
        started_at = loop.time()
        with suppress(TransportClosed):
            while True:
                await transport.receive()
                loop.call_later(2 / speed, lambda: asyncio.ensure_future(transport.send(b'{"type": "answered"}')))
        return loop.time() - started_at

    assert run_in_virtual_time(replay()) == pytest.approx(30 / speed, abs=0.1)


@pytest.mark.parametrize("speed", [0.2, 1.0, 5.0])
def test_a_recorded_pause_longer_than_the_timeout_is_not_a_divergence(tmp_path: Path, speed: float) -> None:
    path = tmp_path / "call.jsonl"

    async def call(model: RealtimeModel, recorder: ModelEventRecorder, speed: float) -> ModelEventRecorder:
        model.add_listener(recorder)
        await model.connect({})
        for _ in range(2):
            await asyncio.sleep(30 / speed)
            await model.send_event(RealtimeModelSendUserInput("Hi"))
        await asyncio.sleep(30 / speed)
        await model.close()
        return recorder

    async def record() -> ModelEventRecorder:
        recording = Recording(path, clock=asyncio.get_running_loop().time)
        return await call(
            LocalRealtimeModel([[Pause(9), "One."], "Two."], recording=recording), ModelEventRecorder(), 1.0
        )

    async def replay() -> ModelEventRecorder:
        return await call(ReplayedRealtimeModel(path, speed=speed), ModelEventRecorder(), speed)

    original, replayed = run_in_virtual_time(record()), run_in_virtual_time(replay())
    for kind in ("turn_started", "turn_ended", "error"):
        assert replayed.of_type(kind) == original.of_type(kind), kind


async def test_a_repeated_request_is_repeated_in_the_replay(tmp_path: Path) -> None:
    async with RealtimeServer(["Good morning."]) as server:
        server.inject("response.create", Discard())
        recording = Recording(tmp_path / "call.jsonl")
        live = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 1.0}, recording=recording)
        for model in (live, None):
            recorder, model = ModelEventRecorder(), model or ReplayedRealtimeModel(tmp_path / "call.jsonl", timeout=2.0)
            model.add_listener(recorder)
            await model.connect(make_config(server))
            await model.send_event(RealtimeModelSendUserInput("Hi"))
            assert (await recorder.wait_for("turn_ended")).status == "completed"
            await model.close()


def test_a_replay_waits_for_a_server_as_long_as_the_call_did(tmp_path: Path) -> None:
    (tmp_path / "call.jsonl").write_text(
        "\n".join(
            [
                _make_line(0.0, "sent", "asked"),
                _make_line(30.0, "received", "answered"),
                _make_line(31.0, "sent", "asked"),
            ]
        )
    )
    [entries] = read_recording(tmp_path / "call.jsonl")

    class SlowServer:
        async def send(self, frame: bytes) -> None: ...

        async def receive(self) -> bytes:
            await asyncio.sleep(30)
            return b'{"type": "answered"}'

        async def close(self) -> None: ...

    assert len(run_in_virtual_time(replay_client(SlowServer(), entries, speed=1.0))) == 1


def test_waiting_for_the_server_does_not_lengthen_a_replay(tmp_path: Path) -> None:
    _write_slow_call(tmp_path / "call.jsonl")
    [entries] = read_recording(tmp_path / "call.jsonl")

    class Server:
        """Asks at the start and one second after each answer."""

        async def send(self, frame: bytes) -> None: ...

        async def receive(self) -> bytes:
            await asyncio.sleep(1.0)
            return b'{"type": "asked"}'

        async def close(self) -> None: ...

    async def replay() -> float:
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        await replay_client(Server(), entries, speed=1.0)
        return loop.time() - started_at

    assert run_in_virtual_time(replay()) == pytest.approx(30, abs=0.1)


def test_secrets_are_not_recorded() -> None:
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
async def test_audio_in_items_is_recorded_only_on_request(tmp_path: Path, audio: bool) -> None:
    audio_text = base64.b64encode(b"the audio of a user").decode()
    item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": audio_text}]}
    async with RealtimeServer() as server:
        model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl", audio=audio))
        await model.connect(make_config(server))
        create = {"type": "conversation.item.create", "other_data": {"item": item}}
        await model.send_event(RealtimeModelSendRawMessage(create))
        await server.connections[0].wait_for_frame("conversation.item.create")
        await model.close()
    assert (audio_text in (tmp_path / "call.jsonl").read_text()) is audio
    (entries,) = read_recording(tmp_path / "call.jsonl")
    (sent,) = [entry for entry in entries if entry.way == "sent" and entry.type == "conversation.item.create"]
    silence = base64.b64encode(bytes(19)).decode()
    assert json.loads(sent.as_frame())["item"]["content"][0]["audio"] == (audio_text if audio else silence)


@pytest.mark.parametrize("code", [1000, 1006, 1011])
async def test_a_replay_loses_the_connection_where_the_recording_did(tmp_path: Path, code: int) -> None:
    ends = []
    async with RealtimeServer(["Good morning."]) as server:
        server.inject("response.output_audio.delta", Disconnect(code))
        live = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl"))
        for model in (live, None):
            recorder, model = ModelEventRecorder(), model or ReplayedRealtimeModel(tmp_path / "call.jsonl")
            model.add_listener(recorder)
            await model.connect(make_config(server))
            await model.send_event(RealtimeModelSendUserInput("Hi"))
            await recorder.wait_for("end_of_stream")
            await model.close()
            ends.append(
                (recorder.of_type("connection_status")[-1].code, str(recorder.of_type("connection_status")[-1].error))
            )
    assert ends[0] == ends[1]
    assert (ends[0][1] == "None") is (code == 1000)


async def test_a_truncated_last_line_of_a_recording_is_ignored(tmp_path: Path) -> None:
    await record_two_connections(tmp_path / "call.jsonl")
    content = (tmp_path / "call.jsonl").read_bytes()
    entries = [entry for connection in read_recording(tmp_path / "call.jsonl") for entry in connection]
    (tmp_path / "cut.jsonl").write_bytes(content[:-20] + "é".encode()[:1])
    assert [entry for connection in read_recording(tmp_path / "cut.jsonl") for entry in connection] == entries[:-1]


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"at": 1, "way": "sent", "colour": "red"}'])
def test_a_file_that_is_not_a_recording_is_rejected(tmp_path: Path, line: str) -> None:
    path = tmp_path / "call.jsonl"
    path.write_text('{"at": 0, "way": "opened"}\n' + line + "\n")
    with pytest.raises(InvalidInput, match="line 2"):
        read_recording(path)


async def test_an_unwritable_recording_fails_connect(tmp_path: Path) -> None:
    model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "nowhere" / "call.jsonl"))
    async with RealtimeServer() as server:
        with pytest.raises(FileNotFoundError):
            await model.connect(make_config(server))
        assert server.connections == []


async def test_a_failed_connect_is_recorded(tmp_path: Path) -> None:
    model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl"))
    with pytest.raises(ConnectFailed):
        await model.connect({"url": "ws://127.0.0.1:9/", "api_key": "k"})
    (attempt,) = read_recording(tmp_path / "call.jsonl")
    assert [(entry.way, entry.reason) for entry in attempt] == [("opened", ""), ("closed", "connecting failed")]


async def test_a_full_disk_stops_the_recording_but_not_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    recorder, model = ModelEventRecorder(), OpenAIRealtimeWebSocketModel(recording=Recording("/dev/full"))
    model.add_listener(recorder)
    async with RealtimeServer(["Good morning."]) as server:
        await model.connect(make_config(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await recorder.wait_for("turn_ended")
        await model.close()
    assert "writing to /dev/full failed: the recording stops" in caplog.text


@pytest.mark.parametrize("where", ["in-process", "websocket"])
async def test_a_recording_can_be_replayed_to_a_session(tmp_path: Path, where: str) -> None:
    path = tmp_path / "call.jsonl"

    async def call(model: RealtimeModel, options: Any) -> list[str]:
        runner = RealtimeRunner(RealtimeAgent(name="Host", instructions="Greet."), model=model)
        types = []
        async with await runner.run(model_config=options) as session:
            await session.send_message("Hi")
            async for event in session.events():
                types.append(event.type)
                if event.type == "agent_end":
                    break
            words = [part.transcript for item in session.history if item.role == "assistant" for part in item.content]
        assert words == ["Good morning."]
        return types

    if where == "in-process":
        original = await call(LocalRealtimeModel(["Good morning."], pace=None, recording=Recording(path)), {})
    else:
        async with RealtimeServer(["Good morning."]) as server:
            original = await call(OpenAIRealtimeWebSocketModel(recording=Recording(path)), make_config(server))
    assert await call(ReplayedRealtimeModel(path), {}) == original


async def test_a_recording_of_the_local_model_can_be_replayed_to_a_server(tmp_path: Path) -> None:
    path, recorder = tmp_path / "call.jsonl", ModelEventRecorder()
    model = LocalRealtimeModel(["Good morning."], tts=ToneTTS(), pace=None, recording=Recording(path))
    model.add_listener(recorder)
    await model.connect({"api_key": "sk-secret"})
    await model.send_event(RealtimeModelSendAudio(bytes(480)))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")
    await model.close()
    assert "sk-secret" not in path.read_text()
    (entries,) = read_recording(path)
    assert (entries[0].way, entries[-1].way, entries[-1].code) == ("opened", "closed", 1000)
    assert "[480 bytes of audio]" in path.read_text()
    recorded_types = _select_countable(entry.type for entry in entries if entry.way == "received")
    async with RealtimeServer(["Good morning."]) as server:
        for transport in (
            await LocalRealtimeModel(["Good morning."], tts=ToneTTS(), pace=None).open_transport({}),
            await OpenAIRealtimeWebSocketModel().open_transport(make_config(server)),
        ):
            messages = await replay_client(transport, entries)
            await transport.close()
            assert _select_countable(message["type"] for message in messages) == recorded_types


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://mcp.example.com/s/s3cret/mcp?token=s3cret", "https://mcp.example.com/[redacted]"),
        ("https://ann:s3cret@mcp.example.com:8080", "https://mcp.example.com:8080/[redacted]"),
        ("https://mcp.example.com", "https://mcp.example.com"),
        ("data:image/png;base64,AAAA", "data:image/png;base64,AAAA"),
    ],
)
def test_only_the_host_of_a_url_is_recorded(url: str, expected: str) -> None:
    message = {"type": "session.update", "session": {"tools": [{"type": "mcp", "server_url": url}]}}
    assert redact(message)["session"]["tools"] == [{"type": "mcp", "server_url": expected}]
    picture = {"type": "conversation.item.create", "item": {"content": [{"type": "input_image", "image_url": url}]}}
    assert redact(picture)["item"]["content"][0]["image_url"] == expected


async def test_invalid_audio_payloads_do_not_fail_a_recorded_connection(tmp_path: Path) -> None:
    recorder = ModelEventRecorder()
    model = OpenAIRealtimeWebSocketModel(recording=Recording(tmp_path / "call.jsonl"))
    model.add_listener(recorder)
    names = {"event_id": "e", "response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0}
    async with RealtimeServer(["Good morning."]) as server:
        server.inject("response.created", Insert({"type": "response.output_audio.delta", **names, "delta": "né"}))
        await model.connect(make_config(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await recorder.wait_for("turn_ended", 1)
        await model.close()
    [entries] = read_recording(tmp_path / "call.jsonl")
    assert "response.done" in [entry.type for entry in entries]
