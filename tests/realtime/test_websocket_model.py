"""The WebSocket model against a real server with injected faults."""

import asyncio
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from factories.realtime_protocol import ModelEventRecorder, make_config
from standfast.agents.errors import UserError
from standfast.realtime import (
    AcknowledgementTimeout,
    AlreadyConnected,
    ApiKeyMissing,
    ConnectFailed,
    ConnectionLost,
    NotConnected,
    OpenAIRealtimeWebSocketModel,
    RealtimeModelListener,
    RealtimeModelSendAudio,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendUserInput,
    ResponseRefused,
    SettingsRejected,
    get_api_key,
)
from standfast.realtime.openai.websocket import build_realtime_url, build_request_headers
from standfast.testing import RealtimeServer
from standfast.testing.interruption import cancel_at_every_await
from standfast.testing.realtime.connection import Collide, Discard, Disconnect, Expire, Insert, Reject, Reorder, Stall


@pytest.fixture
async def server() -> AsyncIterator[RealtimeServer]:
    async with RealtimeServer(["Good morning.", "And again."]) as server:
        yield server


@pytest.fixture
async def recorder() -> ModelEventRecorder:
    return ModelEventRecorder()


@pytest.fixture
async def model(recorder: ModelEventRecorder) -> AsyncIterator[OpenAIRealtimeWebSocketModel]:
    model = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 0.5, "close_timeout": 0.3})
    model.add_listener(recorder)
    yield model
    await model.close()


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.005)


async def test_a_message_is_answered(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server, initial_model_settings={"instructions": "Be kind."}))
    assert server.connections[0].session["instructions"] == "Be kind.", "connect returns when the settings apply"
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    ended = await recorder.wait_for("turn_ended")
    assert ended.status == "completed"
    types = [event.type for event in recorder.events]
    assert types.index("turn_started") < types.index("audio") < types.index("audio_done") < types.index("turn_ended")
    assert "".join(event.delta for event in recorder.of_type("transcript_delta")).strip() == "Good morning."
    assert [event.status for event in recorder.of_type("connection_status")] == ["connecting", "connected"]
    assert recorder.of_type("turn_started")[0].metadata["standfast_requesters"] == "user"
    assert recorder.of_type("error") == []
    await model.close()
    assert [event.type for event in recorder.events[-2:]] == ["connection_status", "end_of_stream"]
    assert (recorder.events[-2].status, recorder.events[-2].error) == ("disconnected", None)


async def test_the_api_key_is_sent_as_a_header(server: RealtimeServer, model: OpenAIRealtimeWebSocketModel) -> None:
    async def key() -> str:
        return "secret"

    await model.connect(make_config(server, api_key=key))
    headers = server.connections[0].headers
    assert headers["Authorization"] == "Bearer secret"
    assert headers["User-Agent"].startswith("standfast/")
    assert server.connections[0].query == {"model": "m"}


async def test_custom_headers_replace_the_authorization() -> None:
    assert await build_request_headers({"headers": {"api-key": "x"}, "api_key": "k"}) == {"api-key": "x"}


async def test_an_api_key_may_be_a_string_or_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await get_api_key("k") == "k"
    assert await get_api_key(lambda: "k") == "k"
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")
    assert await get_api_key(None) == "from outside"
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ApiKeyMissing, match="OPENAI_API_KEY"):
        await OpenAIRealtimeWebSocketModel().connect({})


def test_the_url_follows_from_the_options() -> None:
    assert build_realtime_url({}) == "wss://api.openai.com/v1/realtime?model=gpt-realtime-2.1"
    assert build_realtime_url({"call_id": "c 1"}) == "wss://api.openai.com/v1/realtime?call_id=c%201"
    assert build_realtime_url({"initial_model_settings": {"model_name": "x"}}).endswith("?model=x")
    with pytest.raises(UserError, match="call_id"):
        build_realtime_url({"call_id": "c", "initial_model_settings": {"model_name": "x"}})


async def test_sending_without_a_connection_raises(model: OpenAIRealtimeWebSocketModel) -> None:
    with pytest.raises(NotConnected, match="connect"):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
    with pytest.raises(NotConnected):
        await model.send_event_if(RealtimeModelSendUserInput("Hi"), lambda: True)
    await model.close()


async def test_a_second_connect_raises_and_keeps_the_first_connection(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    with pytest.raises(AlreadyConnected):
        await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")


async def test_a_model_can_reconnect_after_close(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    for count in (1, 2):
        await model.connect(make_config(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await recorder.wait_for("turn_ended", count)
        await model.close()
    assert server.open_connections == []


async def test_a_rejected_handshake_raises_with_its_status(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    server.inject("connect", Reject(status=429))
    with pytest.raises(ConnectFailed) as failure:
        await model.connect(make_config(server))
    assert failure.value.status == 429
    await model.connect(make_config(server))


async def test_connecting_to_a_closed_port_raises(model: OpenAIRealtimeWebSocketModel) -> None:
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:9"):
        await model.connect({"url": "ws://user:secret@127.0.0.1:9/", "api_key": "k"})


async def test_a_handshake_without_an_answer_times_out() -> None:
    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    model = OpenAIRealtimeWebSocketModel(transport_config={"handshake_timeout": 0.1})
    async with await asyncio.start_server(hang, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        with pytest.raises(ConnectFailed, match="timed out"):
            await model.connect({"url": f"ws://127.0.0.1:{port}/", "api_key": "k"})


async def test_rejected_settings_at_connect_leave_nothing_open(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    server.inject("session.update", Reject("invalid_value", "no such voice"))
    with pytest.raises(SettingsRejected, match="no such voice"):
        await model.connect(make_config(server))
    with pytest.raises(NotConnected):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
    await wait_until(lambda: not server.open_connections)


async def test_settings_without_an_acknowledgement_time_out(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    server.inject("session.updated", Discard())
    with pytest.raises(AcknowledgementTimeout, match="settings"):
        await model.connect(make_config(server))


async def test_a_connection_lost_during_connect_raises(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    server.inject("session.update", Disconnect())
    with pytest.raises(ConnectionLost):
        await model.connect(make_config(server))


async def test_new_settings_apply_when_send_event_returns(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendSessionUpdate({"instructions": "Be brief."}))
    assert server.connections[0].session["instructions"] == "Be brief."
    server.inject("session.update", Reject("invalid_value", "no"))
    with pytest.raises(SettingsRejected):
        await model.send_event(RealtimeModelSendSessionUpdate({"instructions": "Be long."}))
    assert server.connections[0].session["instructions"] == "Be brief."
    assert recorder.of_type("error") == []


@pytest.mark.parametrize("connected", [True, False])
async def test_cancelling_connect_at_any_step_leaks_no_socket(
    server_elsewhere: RealtimeServer, connected: bool
) -> None:
    options = make_config(server_elsewhere)

    async def scenario() -> None:
        model = OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2})
        try:
            if connected:
                await model.connect(options)
                await model.close()
            else:
                transport = await model.open_transport(options)
                await transport.close()
        finally:
            await model.close()

    assert await cancel_at_every_await(scenario) >= 2
    await wait_until(lambda: not server_elsewhere.open_connections)


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_cancelling_connect_after_any_loop_iteration_leaks_no_socket(server: RealtimeServer, steps: int) -> None:
    model = OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2})
    task = asyncio.create_task(model.connect(make_config(server)))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await model.close()


async def test_close_is_bounded_if_the_peer_hangs(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    server.connections[0].stall()
    # More than the buffers of both sides, so that the sender blocks in the middle of a frame.
    sender = asyncio.create_task(model.send_event(RealtimeModelSendAudio(bytes(20_000_000))))
    await asyncio.sleep(0.05)
    assert not sender.done(), "a peer that does not read blocks the sender"
    async with asyncio.timeout(60):
        await model.close()
    with pytest.raises(ConnectionLost):
        await sender
    assert recorder.events[-1].type == "end_of_stream"


@pytest.mark.parametrize(
    ("fault", "code", "abnormal"),
    [
        (Disconnect(1000), 1000, False),
        (Disconnect(1011, "broken"), 1011, True),
        (Disconnect(), 1006, True),
        (Expire(), 1001, False),
    ],
)
async def test_a_closed_connection_is_reported(
    server: RealtimeServer,
    model: OpenAIRealtimeWebSocketModel,
    recorder: ModelEventRecorder,
    fault: Any,
    code: int,
    abnormal: bool,
) -> None:
    await model.connect(make_config(server))
    server.inject("response.create", fault)
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("end_of_stream")
    last = recorder.of_type("connection_status")[-1]
    assert (last.status, last.code, last.error is not None) == ("disconnected", code, abnormal)
    refusals = [event.error for event in recorder.of_type("error") if isinstance(event.error, ResponseRefused)]
    started = recorder.of_type("turn_started")
    assert bool(refusals) != bool(started), "a request is either refused or answered"
    with pytest.raises(NotConnected):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
    await model.connect(make_config(server))


async def test_pings_detect_a_peer_that_hangs(server: RealtimeServer, recorder: ModelEventRecorder) -> None:
    model = OpenAIRealtimeWebSocketModel(
        transport_config={"ping_interval": 0.05, "ping_timeout": 0.05, "close_timeout": 0.1}
    )
    model.add_listener(recorder)
    await model.connect(make_config(server))
    server.connections[0].stall()
    await recorder.wait_for("end_of_stream")
    last = recorder.of_type("connection_status")[-1]
    assert isinstance(last.error, ConnectionLost)
    await model.close()


async def test_a_listener_may_reconnect_on_disconnected(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    class ReconnectingListener(ModelEventRecorder):
        async def on_event(self, event: Any) -> None:
            await super().on_event(event)
            if (
                event.type == "connection_status"
                and event.status == "disconnected"
                and len(self.of_type(event.type)) == 2
            ):
                await model.connect(make_config(server))

    listener = ReconnectingListener()
    await model.connect(make_config(server))
    model.add_listener(listener)
    await listener.on_event(type("E", (), {"type": "connection_status", "status": "connected"})())
    server.connections[0].close()
    await wait_until(lambda: len(recorder.of_type("connection_status")) == 5)
    assert [event.status for event in recorder.of_type("connection_status")][-2:] == ["connecting", "connected"]


async def test_the_active_response_of_a_lost_connection_is_reported_as_lost(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    server.inject("response.output_audio.delta", Disconnect(1011), skip=1)
    await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    ended = await recorder.wait_for("turn_ended")
    assert ended.status == "lost"


@pytest.mark.parametrize("frame", ["{ nonsense", "[" * 100_000, '{"type": "x", "y": ' + "[" * 5000 + "]" * 5000 + "}"])
async def test_malformed_frames_do_not_stop_the_reader(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder, frame: str
) -> None:
    server.inject("response.created", Insert(frame))
    server.inject("response.created", Insert({"type": "something.new", "event_id": "x"}))
    await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")
    assert [event.error.code for event in recorder.of_type("error")] == ["realtime-bad-frame"]
    assert "something.new" in [event.data["type"] for event in recorder.of_type("other")]


async def test_an_exception_of_a_listener_affects_no_other(
    server: RealtimeServer,
    model: OpenAIRealtimeWebSocketModel,
    recorder: ModelEventRecorder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    class FailingListener(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            raise RuntimeError("oops")

    model.remove_listener(recorder)
    model.add_listener(FailingListener())
    model.add_listener(recorder)
    await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")
    assert "oops" in caplog.text


async def test_raw_events_precede_their_parsed_events(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    class RawRecorder(ModelEventRecorder):
        raw_server_events = True

    raw_recorder = RawRecorder()
    model.add_listener(raw_recorder)
    await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await raw_recorder.wait_for("turn_ended")
    raw = [event.data["type"] for event in raw_recorder.of_type("raw_server_event")]
    assert raw.count("response.output_audio.delta") == len(raw_recorder.of_type("audio"))
    types = [e.data["type"] if e.type == "raw_server_event" else e.type for e in raw_recorder.events]
    assert types[types.index("turn_started") - 1] == "response.created"


async def test_a_listener_may_change_the_settings(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    class UpdatingListener(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            if event.type == "turn_started":
                await model.send_event(RealtimeModelSendSessionUpdate({"instructions": "From inside."}))

    model.add_listener(UpdatingListener())
    await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")
    await server.connections[0].wait_for_frame("session.update", count=2)


async def test_a_listener_may_close(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    class ClosingListener(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            if event.type == "turn_started":
                await model.close()

    model.add_listener(ClosingListener())
    await model.connect(make_config(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("end_of_stream")


async def test_sends_from_many_tasks_keep_their_order(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    await model.connect(make_config(server))
    clear = "input_audio_buffer.clear"

    async def send(number: int) -> None:
        await model.send_event(RealtimeModelSendRawMessage({"type": clear, "other_data": {"event_id": str(number)}}))

    await asyncio.gather(*(send(number) for number in range(200)))
    await server.connections[0].wait_for_frame(clear, count=200)
    numbers = [int(frame["event_id"]) for frame in server.connections[0].get_received(clear)]
    assert numbers == list(range(200))


async def test_cancelling_one_sender_does_not_affect_others(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    await model.connect(make_config(server))
    clear = "input_audio_buffer.clear"
    tasks = [
        asyncio.create_task(
            model.send_event(RealtimeModelSendRawMessage({"type": clear, "other_data": {"event_id": str(n)}}))
        )
        for n in range(20)
    ]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.wait(tasks)
    await server.connections[0].wait_for_frame(clear, count=20)


async def test_send_event_if_checks_its_condition_when_sending(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    assert not await model.send_event_if(RealtimeModelSendUserInput("No"), lambda: False)
    assert await model.send_event_if(RealtimeModelSendUserInput("Yes"), lambda: True)
    await recorder.wait_for("turn_ended")
    assert len(server.connections[0].get_received("conversation.item.create")) == 1


async def test_a_request_that_collides_is_answered_after_the_other_response(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    server.inject("response.create", Collide())
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended", 2)
    owners = [(event.metadata or {}).get("standfast_requesters") for event in recorder.of_type("turn_started")]
    assert owners == [None, "user"]
    assert recorder.of_type("error") == []


async def test_a_request_that_is_never_answered_is_repeated(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    server.inject("response.create", Discard())
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")
    assert len(server.connections[0].get_received("response.create")) == 2


async def test_a_request_without_any_answer_is_reported(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    server.inject("response.create", Discard(), times=2)
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    assert isinstance((await recorder.wait_for("error")).error, ResponseRefused)
    await model.send_event(RealtimeModelSendUserInput("Hello?"))
    await recorder.wait_for("turn_ended")


async def test_messages_out_of_order_do_not_block_the_response_queue(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, recorder: ModelEventRecorder
) -> None:
    await model.connect(make_config(server))
    server.inject("response.created", Reorder("response.output_item.added"))
    for count in (1, 2):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await recorder.wait_for("turn_ended", count)


async def test_an_interruption_ends_the_response_and_its_audio() -> None:
    async with RealtimeServer(["One two three four five six seven eight nine ten."], pace=1.0) as server:
        recorder, model = ModelEventRecorder(), OpenAIRealtimeWebSocketModel()
        model.add_listener(recorder)
        await model.connect(make_config(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await recorder.wait_for("audio", 2)
        await model.send_event(RealtimeModelSendInterrupt())
        assert recorder.events[-1].type == "audio_interrupted"
        position = len(recorder.events)
        ended = await recorder.wait_for("turn_ended")
        truncated = await recorder.wait_for("item_truncated")
        assert ended.status == "cancelled"
        assert not [event for event in recorder.events[position:] if event.type == "audio"]
        assert truncated.audio_end_ms == recorder.of_type("audio_interrupted")[0].audio_end_ms
        assert recorder.of_type("error") == []
        await model.send_event(RealtimeModelSendInterrupt())
        await model.close()


async def test_a_stalled_server_blocks_only_its_own_model(server: RealtimeServer) -> None:
    stalled, fine = (OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2}) for _ in range(2))
    recorder = ModelEventRecorder()
    fine.add_listener(recorder)
    server.inject("response.created", Stall(), connection=0)
    await stalled.connect(make_config(server))
    await fine.connect(make_config(server))
    await stalled.send_event(RealtimeModelSendUserInput("Hi"))
    await fine.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("turn_ended")
    await stalled.close()
    await fine.close()


async def test_a_lost_end_of_a_response_does_not_block_the_model(
    server: RealtimeServer, recorder: ModelEventRecorder
) -> None:
    model = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 0.1})
    model.add_listener(recorder)
    await model.connect(make_config(server))
    server.inject("response.done", Discard())
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await recorder.wait_for("text_done")
    await model.send_event(RealtimeModelSendUserInput("Hello?"))
    await recorder.wait_for("turn_ended")
    await model.close()


def run_program(code: str) -> str:
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return done.stdout.strip()


def test_importing_a_realtime_model_imports_nothing_heavy() -> None:
    loaded = run_program(
        "import sys, standfast.realtime as r; names = [dir(r)]; light = 'pydantic' not in sys.modules; "
        "r.OpenAIRealtimeWebSocketModel(); r.RealtimeModelSendUserInput('Hi'); "
        "print(light, [m for m in ('openai', 'websockets') if m in sys.modules])"
    )
    assert loaded == "True []"


def test_without_websockets_errors_name_the_extra() -> None:
    output = run_program(
        "import sys, asyncio; sys.modules['websockets'] = None\n"
        "from standfast.realtime import OpenAIRealtimeWebSocketModel\n"
        "from standfast.base.errors import MissingExtra\n"
        "try: asyncio.run(OpenAIRealtimeWebSocketModel().connect({'api_key': 'k'}))\n"
        "except MissingExtra as error: print(error)\n"
        "try: from standfast.testing import RealtimeServer\n"
        "except MissingExtra as error: print(error)"
    )
    assert output.count("pip install 'standfast[realtime]'") == 2


@pytest.mark.parametrize(
    "config",
    [
        {"api_key": "sk-secret\n"},
        {"api_key": lambda: "sk-secret\r\n"},
        {"headers": {"Authorization": "Bearer sk-secret\n"}},
        {"api_key": "sk-secret\N{EN DASH}1"},
    ],
)
async def test_an_invalid_api_key_is_rejected_without_revealing_it(config, caplog):
    async with RealtimeServer([]) as server:
        with pytest.raises(UserError, match="Authorization") as error_info:
            await OpenAIRealtimeWebSocketModel().connect({"url": server.url, **config})
        assert server.connections == []
    assert "secret" not in f"{error_info.value}{caplog.text}"


async def test_an_invalid_proxy_is_reported_without_its_secrets(monkeypatch):
    monkeypatch.setenv("http_proxy", "ftp://user:hidden@proxy:1")
    with pytest.raises(ConnectFailed, match="proxy") as failed:
        await OpenAIRealtimeWebSocketModel().connect({"url": "ws://example.invalid/", "api_key": "k"})
    assert "hidden" not in "".join(traceback.format_exception(failed.value))


async def test_an_api_key_function_that_hangs_times_out():
    async def hanging_key() -> str:
        await asyncio.sleep(3600)
        return "late"

    model = OpenAIRealtimeWebSocketModel(transport_config={"handshake_timeout": 0.05})
    async with asyncio.timeout(60):
        with pytest.raises(ConnectFailed, match="api_key function"):
            await model.connect({"url": "ws://127.0.0.1:9/", "api_key": hanging_key})


async def test_debug_logging_does_not_reveal_the_api_key(caplog):
    caplog.set_level(logging.DEBUG)
    async with RealtimeServer([]) as server:
        model = OpenAIRealtimeWebSocketModel()
        await model.connect({"url": server.url.replace("//", "//user:hidden-1@"), "api_key": "hidden-2"})
        await model.close()
    lines = [record.getMessage() for record in caplog.records if record.name != "websockets.server"]
    assert not [line for line in lines if "hidden" in line or "Authorization" in line]


@pytest.mark.parametrize("key", [7, lambda: b"sk-of-bytes"])
async def test_an_api_key_must_be_a_string(key):
    with pytest.raises(UserError, match="api_key"):
        await OpenAIRealtimeWebSocketModel().connect({"url": "ws://127.0.0.1:9/", "api_key": key})


@pytest.mark.parametrize(
    "url",
    [
        "https://user:hidden@host/v1/realtime?token=hidden",
        "user:hidden@host/v1",
        "ws://user:hidden/of@host/v1",
        "ws://user:hidden@[::1/",
        "wss://user:hidden@/v1",
    ],
)
async def test_an_invalid_url_is_rejected_without_revealing_its_secrets(url):
    with pytest.raises(UserError, match="wss://") as error_info:
        await OpenAIRealtimeWebSocketModel().connect({"url": url, "api_key": "k"})
    assert "hidden" not in "".join(traceback.format_exception(error_info.value))


async def test_the_message_of_a_rejected_handshake_is_reported_without_the_api_key():
    async with RealtimeServer([]) as server:
        body = '{"error": {"message": "Incorrect API key provided: sk-secret-1.", "code": "invalid_api_key"}}'
        server.inject("connect", Reject(status=401, message=body))
        with pytest.raises(ConnectFailed) as error_info:
            await OpenAIRealtimeWebSocketModel().connect({"url": server.url, "api_key": "sk-secret-1"})
    assert error_info.value.status == 401
    assert "HTTP 401: Incorrect API key provided: ***" in str(error_info.value)


@pytest.mark.parametrize("ending", ["closed", "silent"])
async def test_a_failed_connect_notes_the_last_error_of_the_server(ending):
    error = {"type": "invalid_request_error", "code": "model_not_found", "message": "There is no model `gpt-nope`."}
    async with RealtimeServer([]) as server:
        server.inject("session.update", Discard())
        server.inject("session.created", Insert({"type": "error", "event_id": "e1", "error": error}))
        if ending == "closed":
            server.inject("session.created", Disconnect(4000))
        model = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 0.2})
        with pytest.raises((ConnectionLost, AcknowledgementTimeout)) as failed:
            await model.connect({"url": server.url, "api_key": "test"})
    assert failed.value.__notes__ == ["the last error of the server was: There is no model `gpt-nope`."]
