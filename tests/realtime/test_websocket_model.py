"""The model over a real WebSocket, against a server that misbehaves on demand."""

import asyncio
import logging
import os
import subprocess
import sys
import time
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

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
from standfast.testing.cancellation import cancel_at_every_await
from standfast.testing.realtime.faults import Collide, Discard, Disconnect, Expire, Insert, Reject, Reorder, Stall


class Ear(RealtimeModelListener):
    """Remembers what it was told."""

    raw_server_events = False

    def __init__(self) -> None:
        self.events: list[Any] = []
        self._news = asyncio.Event()

    async def on_event(self, event: Any) -> None:
        self.events.append(event)
        self._news.set()

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.type == kind]

    async def until(self, kind: str, count: int = 1) -> Any:
        async with asyncio.timeout(5):
            while len(self.of(kind)) < count:
                self._news.clear()
                await self._news.wait()
        return self.of(kind)[count - 1]


@pytest.fixture
async def server() -> AsyncIterator[RealtimeServer]:
    async with RealtimeServer(["Good morning.", "And again."]) as server:
        yield server


@pytest.fixture
async def ear() -> Ear:
    return Ear()


@pytest.fixture
async def model(ear: Ear) -> AsyncIterator[OpenAIRealtimeWebSocketModel]:
    model = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 0.5, "close_timeout": 0.3})
    model.add_listener(ear)
    yield model
    await model.close()


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(3):
        while not holds():  # noqa: ASYNC110 - what is waited for is on the other side of a socket
            await asyncio.sleep(0.005)


def at(server: RealtimeServer, **options: Any) -> Any:
    return {"url": f"{server.url}?model=m", "api_key": "k", **options}


async def test_a_turn(server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear) -> None:
    await model.connect(at(server, initial_model_settings={"instructions": "Be kind."}))
    assert server.connections[0].session["instructions"] == "Be kind.", "connect waits until the settings hold"
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    ended = await ear.until("turn_ended")
    assert ended.status == "completed"
    kinds = [event.type for event in ear.events]
    assert kinds.index("turn_started") < kinds.index("audio") < kinds.index("audio_done") < kinds.index("turn_ended")
    assert "".join(event.delta for event in ear.of("transcript_delta")).strip() == "Good morning."
    assert [event.status for event in ear.of("connection_status")] == ["connecting", "connected"]
    assert ear.of("turn_started")[0].metadata["standfast_owners"] == "user"
    assert ear.of("error") == []
    await model.close()
    assert [event.type for event in ear.events[-2:]] == ["connection_status", "end_of_stream"]
    assert (ear.events[-2].status, ear.events[-2].error) == ("disconnected", None)


async def test_the_key_and_the_headers(server: RealtimeServer, model: OpenAIRealtimeWebSocketModel) -> None:
    async def key() -> str:
        return "secret"

    await model.connect(at(server, api_key=key))
    headers = server.connections[0].headers
    assert headers["Authorization"] == "Bearer secret"
    assert headers["User-Agent"].startswith("standfast/")
    assert server.connections[0].query == {"model": "m"}


async def test_own_headers_replace_the_authorization() -> None:
    assert await build_request_headers({"headers": {"api-key": "x"}, "api_key": "k"}) == {"api-key": "x"}


async def test_keys_come_in_many_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await get_api_key("k") == "k"
    assert await get_api_key(lambda: "k") == "k"
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")
    assert await get_api_key(None) == "from outside"
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ApiKeyMissing, match="OPENAI_API_KEY"):
        await OpenAIRealtimeWebSocketModel().connect({})


def test_where_to_connect() -> None:
    assert build_realtime_url({}) == "wss://api.openai.com/v1/realtime?model=gpt-realtime-2.1"
    assert build_realtime_url({"call_id": "c 1"}) == "wss://api.openai.com/v1/realtime?call_id=c%201"
    assert build_realtime_url({"initial_model_settings": {"model_name": "x"}}).endswith("?model=x")
    with pytest.raises(UserError, match="call_id"):
        build_realtime_url({"call_id": "c", "initial_model_settings": {"model_name": "x"}})


async def test_sending_without_a_connection_is_refused(model: OpenAIRealtimeWebSocketModel) -> None:
    with pytest.raises(NotConnected, match="connect"):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
    with pytest.raises(NotConnected):
        await model.send_event_if(RealtimeModelSendUserInput("Hi"), lambda: True)
    await model.close()


async def test_a_second_connection_is_refused_and_the_first_lives_on(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    with pytest.raises(AlreadyConnected):
        await model.connect(at(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")


async def test_it_may_connect_again_after_close(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    for count in (1, 2):
        await model.connect(at(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await ear.until("turn_ended", count)
        await model.close()
    assert server.open_connections == []


async def test_a_refused_handshake(server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear) -> None:
    server.inject("connect", Reject(status=429))
    with pytest.raises(ConnectFailed) as failure:
        await model.connect(at(server))
    assert failure.value.status == 429
    await model.connect(at(server))


async def test_nobody_listens(model: OpenAIRealtimeWebSocketModel) -> None:
    with pytest.raises(ConnectFailed, match=r"127\.0\.0\.1:9"):
        await model.connect({"url": "ws://user:secret@127.0.0.1:9/", "api_key": "k"})


async def test_a_peer_that_never_answers_the_handshake() -> None:
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
        await model.connect(at(server))
    with pytest.raises(NotConnected):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
    await eventually(lambda: not server.open_connections)


async def test_settings_that_are_never_acknowledged(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    server.inject("session.updated", Discard())
    with pytest.raises(AcknowledgementTimeout, match="settings"):
        await model.connect(at(server))


async def test_a_connection_that_breaks_during_connect(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    server.inject("session.update", Disconnect())
    with pytest.raises(ConnectionLost):
        await model.connect(at(server))


async def test_new_settings_hold_when_the_sending_returns(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    await model.send_event(RealtimeModelSendSessionUpdate({"instructions": "Be brief."}))
    assert server.connections[0].session["instructions"] == "Be brief."
    server.inject("session.update", Reject("invalid_value", "no"))
    with pytest.raises(SettingsRejected):
        await model.send_event(RealtimeModelSendSessionUpdate({"instructions": "Be long."}))
    assert server.connections[0].session["instructions"] == "Be brief."
    assert ear.of("error") == []


@pytest.mark.parametrize("whole", [True, False])
async def test_cancelling_connect_anywhere_leaves_no_socket(server_elsewhere: RealtimeServer, whole: bool) -> None:
    options = at(server_elsewhere)

    async def scenario() -> None:
        model = OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2})
        try:
            if whole:
                await model.connect(options)
                await model.close()
            else:
                link = await model.open_transport(options)
                await link.close()
        finally:
            await model.close()

    assert await cancel_at_every_await(scenario) >= 2
    await eventually(lambda: not server_elsewhere.open_connections)


@pytest.mark.parametrize("steps", range(0, 40, 3))
async def test_cancelling_connect_after_so_many_turns_of_the_loop_leaves_no_socket(
    server: RealtimeServer, steps: int
) -> None:
    model = OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2})
    task = asyncio.create_task(model.connect(at(server)))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await model.close()


async def test_close_is_quick_although_the_peer_hangs(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    server.connections[0].stall()
    # More than the buffers of both sides take, so that a sender is stuck in the middle of a frame.
    sender = asyncio.create_task(model.send_event(RealtimeModelSendAudio(bytes(20_000_000))))
    await asyncio.sleep(0.05)
    assert not sender.done(), "a peer that takes nothing holds up the sender"
    began = time.monotonic()
    await model.close()
    assert time.monotonic() - began < 5
    with pytest.raises(ConnectionLost):
        await sender
    assert ear.events[-1].type == "end_of_stream"


@pytest.mark.parametrize(
    ("fault", "code", "abnormal"),
    [
        (Disconnect(1000), 1000, False),
        (Disconnect(1011, "broken"), 1011, True),
        (Disconnect(), 1006, True),
        (Expire(), 1001, False),
    ],
)
async def test_the_end_of_a_connection_is_noticed(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear, fault: Any, code: int, abnormal: bool
) -> None:
    await model.connect(at(server))
    server.inject("response.create", fault)
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("end_of_stream")
    gone = ear.of("connection_status")[-1]
    assert (gone.status, gone.code, gone.error is not None) == ("disconnected", code, abnormal)
    refusals = [event.error for event in ear.of("error") if isinstance(event.error, ResponseRefused)]
    answered = ear.of("turn_started")
    assert bool(refusals) != bool(answered), "who asked is told one way or the other"
    with pytest.raises(NotConnected):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
    await model.connect(at(server))


async def test_a_peer_that_hangs_is_noticed_by_pings(server: RealtimeServer, ear: Ear) -> None:
    model = OpenAIRealtimeWebSocketModel(
        transport_config={"ping_interval": 0.05, "ping_timeout": 0.05, "close_timeout": 0.1}
    )
    model.add_listener(ear)
    await model.connect(at(server))
    server.connections[0].stall()
    await ear.until("end_of_stream")
    gone = ear.of("connection_status")[-1]
    assert isinstance(gone.error, ConnectionLost)
    await model.close()


async def test_a_listener_may_connect_again_when_it_hears_of_the_end(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    class Faithful(Ear):
        async def on_event(self, event: Any) -> None:
            await super().on_event(event)
            if event.type == "connection_status" and event.status == "disconnected" and len(self.of(event.type)) == 2:
                await model.connect(at(server))

    faithful = Faithful()
    await model.connect(at(server))
    model.add_listener(faithful)
    await faithful.on_event(type("E", (), {"type": "connection_status", "status": "connected"})())
    server.connections[0].close()
    await eventually(lambda: len(ear.of("connection_status")) == 5)
    assert [event.status for event in ear.of("connection_status")][-2:] == ["connecting", "connected"]


async def test_a_response_that_died_with_the_connection_is_lost(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    server.inject("response.output_audio.delta", Disconnect(1011), skip=1)
    await model.connect(at(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    ended = await ear.until("turn_ended")
    assert ended.status == "lost"


@pytest.mark.parametrize(
    "nonsense", ["{ nonsense", "[" * 100_000, '{"type": "x", "y": ' + "[" * 5000 + "]" * 5000 + "}"]
)
async def test_the_reader_survives_nonsense(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear, nonsense: str
) -> None:
    server.inject("response.created", Insert(nonsense))
    server.inject("response.created", Insert({"type": "something.new", "event_id": "x"}))
    await model.connect(at(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")
    assert [event.error.code for event in ear.of("error")] == ["realtime-bad-frame"]
    assert "something.new" in [event.data["type"] for event in ear.of("other")]


async def test_a_raising_listener_hurts_nobody(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            raise RuntimeError("oops")

    model.remove_listener(ear)
    model.add_listener(Clumsy())
    model.add_listener(ear)
    await model.connect(at(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")
    assert "oops" in caplog.text


async def test_raw_messages_come_before_their_meaning(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    class Curious(Ear):
        raw_server_events = True

    curious = Curious()
    model.add_listener(curious)
    await model.connect(at(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await curious.until("turn_ended")
    raw = [event.data["type"] for event in curious.of("raw_server_event")]
    assert raw.count("response.output_audio.delta") == len(curious.of("audio"))
    kinds = [e.data["type"] if e.type == "raw_server_event" else e.type for e in curious.events]
    assert kinds[kinds.index("turn_started") - 1] == "response.created"


async def test_a_listener_may_change_the_settings(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    class Eager(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            if event.type == "turn_started":
                await model.send_event(RealtimeModelSendSessionUpdate({"instructions": "From inside."}))

    model.add_listener(Eager())
    await model.connect(at(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")
    await server.connections[0].wait_for_frame("session.update", count=2)


async def test_a_listener_may_close(server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear) -> None:
    class Done(RealtimeModelListener):
        async def on_event(self, event: Any) -> None:
            if event.type == "turn_started":
                await model.close()

    model.add_listener(Done())
    await model.connect(at(server))
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("end_of_stream")


async def test_sends_from_many_tasks_keep_their_order(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    await model.connect(at(server))
    clear = "input_audio_buffer.clear"

    async def send(number: int) -> None:
        await model.send_event(RealtimeModelSendRawMessage({"type": clear, "other_data": {"event_id": str(number)}}))

    await asyncio.gather(*(send(number) for number in range(200)))
    await server.connections[0].wait_for_frame(clear, count=200)
    numbers = [int(frame["event_id"]) for frame in server.connections[0].get_received(clear)]
    assert numbers == list(range(200))


async def test_a_sender_that_is_cancelled_does_not_disturb_the_others(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel
) -> None:
    await model.connect(at(server))
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


async def test_a_condition_is_asked_at_the_moment_of_sending(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    assert not await model.send_event_if(RealtimeModelSendUserInput("No"), lambda: False)
    assert await model.send_event_if(RealtimeModelSendUserInput("Yes"), lambda: True)
    await ear.until("turn_ended")
    assert len(server.connections[0].get_received("conversation.item.create")) == 1


async def test_a_request_that_collides_is_answered_after_the_winner(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    server.inject("response.create", Collide())
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended", 2)
    owners = [(event.metadata or {}).get("standfast_owners") for event in ear.of("turn_started")]
    assert owners == [None, "user"]
    assert ear.of("error") == []


async def test_a_request_that_is_never_answered_is_repeated(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    server.inject("response.create", Discard())
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")
    assert len(server.connections[0].get_received("response.create")) == 2


async def test_a_request_that_is_never_ever_answered_is_reported(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    server.inject("response.create", Discard(), times=2)
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    assert isinstance((await ear.until("error")).error, ResponseRefused)
    await model.send_event(RealtimeModelSendUserInput("Hello?"))
    await ear.until("turn_ended")


async def test_messages_out_of_order_do_not_block_the_gate(
    server: RealtimeServer, model: OpenAIRealtimeWebSocketModel, ear: Ear
) -> None:
    await model.connect(at(server))
    server.inject("response.created", Reorder("response.output_item.added"))
    for count in (1, 2):
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await ear.until("turn_ended", count)


async def test_an_interruption_ends_the_response_and_its_audio() -> None:
    async with RealtimeServer(["One two three four five six seven eight nine ten."], pace=1.0) as server:
        ear, model = Ear(), OpenAIRealtimeWebSocketModel()
        model.add_listener(ear)
        await model.connect(at(server))
        await model.send_event(RealtimeModelSendUserInput("Hi"))
        await ear.until("audio", 2)
        await model.send_event(RealtimeModelSendInterrupt())
        assert ear.events[-1].type == "audio_interrupted"
        position = len(ear.events)
        ended = await ear.until("turn_ended")
        truncated = await ear.until("item_truncated")
        assert ended.status == "cancelled"
        assert not [event for event in ear.events[position:] if event.type == "audio"]
        assert truncated.audio_end_ms == ear.of("audio_interrupted")[0].audio_end_ms
        assert ear.of("error") == []
        await model.send_event(RealtimeModelSendInterrupt())
        await model.close()


async def test_a_stalled_server_stalls_nothing_but_its_own_model(server: RealtimeServer) -> None:
    stalled, fine = (OpenAIRealtimeWebSocketModel(transport_config={"close_timeout": 0.2}) for _ in range(2))
    ear = Ear()
    fine.add_listener(ear)
    server.inject("response.created", Stall(), connection=0)
    await stalled.connect(at(server))
    await fine.connect(at(server))
    await stalled.send_event(RealtimeModelSendUserInput("Hi"))
    await fine.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("turn_ended")
    await stalled.close()
    await fine.close()


async def test_a_response_whose_end_was_lost_does_not_silence_the_model(server: RealtimeServer, ear: Ear) -> None:
    model = OpenAIRealtimeWebSocketModel(transport_config={"acknowledge_timeout": 0.1})
    model.add_listener(ear)
    await model.connect(at(server))
    server.inject("response.done", Discard())
    await model.send_event(RealtimeModelSendUserInput("Hi"))
    await ear.until("text_done")
    await model.send_event(RealtimeModelSendUserInput("Hello?"))
    await ear.until("turn_ended")
    await model.close()


def program(code: str) -> str:
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return done.stdout.strip()


def test_a_realtime_model_costs_nothing_heavy_before_it_connects() -> None:
    loaded = program(
        "import sys, standfast.realtime as r; names = [dir(r)]; light = 'pydantic' not in sys.modules; "
        "r.OpenAIRealtimeWebSocketModel(); r.RealtimeModelSendUserInput('Hi'); "
        "print(light, [m for m in ('openai', 'websockets') if m in sys.modules])"
    )
    assert loaded == "True []"


def test_without_the_library_it_says_what_to_install() -> None:
    said = program(
        "import sys, asyncio; sys.modules['websockets'] = None\n"
        "from standfast.realtime import OpenAIRealtimeWebSocketModel\n"
        "from standfast.base.errors import MissingExtra\n"
        "try: asyncio.run(OpenAIRealtimeWebSocketModel().connect({'api_key': 'k'}))\n"
        "except MissingExtra as error: print(error)"
    )
    assert "pip install 'standfast[realtime]'" in said


@pytest.mark.parametrize(
    "config",
    [
        {"api_key": "sk-secret\n"},
        {"api_key": lambda: "sk-secret\r\n"},
        {"headers": {"Authorization": "Bearer sk-secret\n"}},
        {"api_key": "sk-secret\N{EN DASH}1"},
    ],
)
async def test_a_key_that_no_header_can_carry_is_refused_and_told_nowhere(config, caplog):
    async with RealtimeServer([]) as server:
        with pytest.raises(UserError, match="Authorization") as refused:
            await OpenAIRealtimeWebSocketModel().connect({"url": server.url, **config})
        assert server.connections == []
    assert "secret" not in f"{refused.value}{caplog.text}"


async def test_a_proxy_that_cannot_be_is_named_without_its_secrets(monkeypatch):
    monkeypatch.setenv("http_proxy", "ftp://user:hidden@proxy:1")
    with pytest.raises(ConnectFailed, match="proxy") as failed:
        await OpenAIRealtimeWebSocketModel().connect({"url": "ws://example.invalid/", "api_key": "k"})
    assert "hidden" not in "".join(traceback.format_exception(failed.value))


async def test_a_key_that_does_not_come_is_not_waited_for_for_ever():
    async def vault() -> str:
        await asyncio.sleep(3600)
        return "late"

    model = OpenAIRealtimeWebSocketModel(transport_config={"handshake_timeout": 0.05})
    async with asyncio.timeout(5):
        with pytest.raises(ConnectFailed, match="API key"):
            await model.connect({"url": "ws://127.0.0.1:9/", "api_key": vault})


async def test_a_program_that_logs_everything_does_not_log_the_key(caplog):
    caplog.set_level(logging.DEBUG)
    async with RealtimeServer([]) as server:
        model = OpenAIRealtimeWebSocketModel()
        await model.connect({"url": server.url.replace("//", "//user:hidden-1@"), "api_key": "hidden-2"})
        await model.close()
    told = [record.getMessage() for record in caplog.records if record.name != "websockets.server"]
    assert not [line for line in told if "hidden" in line or "Authorization" in line]


@pytest.mark.parametrize("key", [7, lambda: b"sk-of-bytes"])
async def test_a_key_that_is_no_text_is_refused(key):
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
async def test_an_address_that_cannot_be_is_refused_without_its_secrets(url):
    with pytest.raises(UserError, match="wss://") as refused:
        await OpenAIRealtimeWebSocketModel().connect({"url": url, "api_key": "k"})
    assert "hidden" not in "".join(traceback.format_exception(refused.value))


async def test_what_the_server_says_when_it_turns_a_connection_away_is_told_without_the_key():
    async with RealtimeServer([]) as server:
        body = '{"error": {"message": "Incorrect API key provided: sk-secret-1.", "code": "invalid_api_key"}}'
        server.inject("connect", Reject(status=401, message=body))
        with pytest.raises(ConnectFailed) as refused:
            await OpenAIRealtimeWebSocketModel().connect({"url": server.url, "api_key": "sk-secret-1"})
    assert refused.value.status == 401
    assert "HTTP 401: Incorrect API key provided: ***" in str(refused.value)


@pytest.mark.parametrize("ending", ["closed", "silent"])
async def test_a_connection_that_fails_after_an_error_of_the_server_says_what_it_was(ending):
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


def test_a_server_for_tests_without_websockets_says_what_to_install():
    program = """if True:
        import sys
        from importlib.abc import MetaPathFinder
        class Without(MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "websockets":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        sys.meta_path.insert(0, Without())
        from standfast.base.errors import MissingExtra
        try:
            from standfast.testing import RealtimeServer
        except MissingExtra as missing:
            print(missing)
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "standfast[realtime]" in done.stdout
