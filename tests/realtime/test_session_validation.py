"""Likely mistakes of a program raise at once, with a message that says what to change."""

import asyncio
import logging

import pytest

from factories.realtime import in_virtual_time, open_scripted_session, open_websocket_session, record_events, wait_until
from standfast import Agent, UserError
from standfast.base.errors import Closed
from standfast.realtime import (
    LocalRealtimeModel,
    RealtimeAgent,
    RealtimeModelSendRawMessage,
    RealtimeRunner,
    ReplayedRealtimeModel,
)
from standfast.testing import RealtimeServer, ScriptedModel

AGENT = RealtimeAgent(name="host")


async def enter(agent=AGENT, model=None, config=None, **run):
    used = LocalRealtimeModel(["Hello."], pace=None) if model is None else model
    async with await RealtimeRunner(agent, model=used, config=config).run(**run) as session:
        return session


async def checked(context, agent, output):
    raise AssertionError("it is never asked")


@pytest.mark.parametrize("where", ["agent", "config"])
async def test_a_function_that_is_not_a_guardrail_is_refused(where):
    agent = RealtimeAgent(name="host", output_guardrails=[checked] if where == "agent" else [])
    config = {"output_guardrails": [checked]} if where == "config" else {}
    with pytest.raises(UserError, match="@output_guardrail"):
        await enter(agent, config=config)


@pytest.mark.parametrize("target", ["billing", None, Agent("billing")])
async def test_a_handoff_to_anything_but_a_realtime_agent_is_refused(target):
    with pytest.raises(UserError, match="handoffs"):
        await enter(RealtimeAgent(name="host", handoffs=[target]))


@pytest.mark.parametrize(
    "message",
    [
        None,
        b"hello",
        ["hello"],
        {"text": "hello"},
        {"role": "user", "content": "hello"},
        {"type": "message", "role": "user", "content": ["hello"]},
        {"type": "message", "role": "user", "content": []},
    ],
)
async def test_an_invalid_message_is_refused_and_the_session_continues(message):
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        with pytest.raises(UserError, match="input_text"):
            await session.send_message(message)
        assert model.sent_events == ()
        await session.send_message("Hello.")
        assert len(model.sent_events) == 1


@pytest.mark.parametrize("audio", [None, "UklGRg==", [0, 0]])
async def test_audio_that_is_not_bytes_is_refused(audio):
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        with pytest.raises(UserError, match="bytes"):
            await session.send_audio(audio)
        assert model.sent_events == ()


async def test_any_kind_of_bytes_is_audio():
    async with RealtimeServer([]) as server, open_websocket_session(server, AGENT) as (session, _recorded):
        for audio in (b"\1\0" * 480, bytearray(b"\1\0" * 480), memoryview(b"\1\0" * 480)):
            await session.send_audio(audio)
        connection = server.connections[0]
        await wait_until(lambda: len(connection.get_received("input_audio_buffer.append")) == 3)
        sent = connection.get_received("input_audio_buffer.append")
        assert len({frame["audio"] for frame in sent}) == 1


@pytest.mark.parametrize("model", ["gpt-realtime", ScriptedModel([])])
async def test_a_model_that_is_not_a_realtime_model_is_refused(model):
    with pytest.raises(UserError, match="RealtimeModel"):
        await enter(model=model)


async def test_an_object_that_is_not_a_history_is_refused():
    with pytest.raises(UserError, match="SQLiteSession"):
        await enter(session="caller-7")


@pytest.mark.parametrize("responder", ["Hello.", None, len])
def test_a_responder_that_cannot_answer_is_refused(responder):
    with pytest.raises(UserError, match="list of turns"):
        LocalRealtimeModel(responder)


@pytest.mark.parametrize("pace", [0, -1.0, float("nan")])
def test_a_pace_that_is_not_positive_is_refused(pace, tmp_path):
    with pytest.raises(UserError, match="pace must be greater than 0, or None"):
        LocalRealtimeModel(["Hello."], pace=pace)
    with pytest.raises(UserError, match="pace must be greater than 0, or None"):
        RealtimeServer(["Hello."], pace=pace)
    (tmp_path / "call.jsonl").touch()
    with pytest.raises(UserError, match="speed must be greater than 0, or None"):
        ReplayedRealtimeModel(tmp_path / "call.jsonl", speed=pace)


async def test_a_closed_session_cannot_be_entered_again():
    session = await enter()
    with pytest.raises(Closed) as refused:
        await session.enter()
    assert "before" not in str(refused.value)


async def test_a_raw_message_without_a_type_is_refused():
    async with RealtimeServer([]) as server, open_websocket_session(server, AGENT) as (session, _recorded):
        with pytest.raises(UserError, match="type"):
            await session.model.send_event(RealtimeModelSendRawMessage({"event": "response.create"}))


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("response.create", {"response": {"instructions": object()}}),
        ("response.create", {"response": {"metadata": "urgent"}}),
        ("session.update", {"session": {"instructions": "half of \ud83d"}}),
    ],
)
@in_virtual_time
async def test_a_raw_message_that_cannot_be_sent_is_refused_and_blocks_nothing(kind, parts):
    session = await RealtimeRunner(AGENT, model=LocalRealtimeModel(["Hello."], pace=None)).run()
    async with record_events(session) as recorded, session:
        with pytest.raises(UserError, match="raw message"):
            await session.model.send_event(RealtimeModelSendRawMessage({"type": kind, "other_data": parts}))
        async with asyncio.timeout(1):
            await session.send_message("Hi.")
            await recorded.wait_for("agent_end")
            await session.update_agent(RealtimeAgent(name="next"))


@in_virtual_time
async def test_the_agent_stays_if_the_settings_of_the_next_one_cannot_be_sent():
    model = LocalRealtimeModel(["Hello."], pace=None)
    session = await RealtimeRunner(RealtimeAgent(name="host", instructions="Be kind."), model=model).run()
    async with record_events(session) as recorded, session:
        engine = model.engine
        with pytest.raises(ValueError, match="surrogates"):
            await session.update_agent(RealtimeAgent(name="next", instructions="half of \ud83d"))
        async with asyncio.timeout(1):
            await session.update_agent(RealtimeAgent(name="other", instructions="Be brief."))
        assert model.engine is engine
        assert engine.settings.instructions == "Be brief."
        assert recorded.of_type("reconnecting") == []


@pytest.mark.parametrize(
    ("config", "unknown", "meant"),
    [
        ({"guardrail_settings": {}}, "guardrail_settings", "guardrails_settings"),
        ({"guardrails_settings": {"hold_back": True}}, "hold_back", "hold_back_audio"),
        ({"reconnect": {"attempt": 0}}, "attempt", "attempts"),
        ({"tool_execution": {"aproval_timeout": 3}}, "aproval_timeout", "approval_timeout"),
        ({"model_settings": {"output_modality": ["text"]}}, "output_modality", "output_modalities"),
    ],
)
async def test_an_unknown_key_of_the_config_is_logged(config, unknown, meant, caplog):
    with caplog.at_level(logging.WARNING, "standfast.realtime"):
        await enter(config=config)
    (record,) = caplog.records
    assert repr(unknown) in record.getMessage()
    assert repr(meant) in record.getMessage()


async def test_a_config_with_known_keys_is_not_logged(caplog):
    config = {
        "model_settings": {"voice": "ash"},
        "guardrails_settings": {"timeout": None},
        "reconnect": {"attempts": 0},
    }
    await enter(config=config, model_config={"initial_model_settings": {"speed": 1.1}})
    assert caplog.records == []


@pytest.mark.parametrize(
    ("section", "given", "expected"),
    [
        ("reconnect", {"attempts": "6"}, "'attempts' must be a number, got '6'"),
        ("reconnect", {"initial_delay": "0.5"}, "'initial_delay' must be a number"),
        ("guardrails_settings", {"timeout": "5"}, "'timeout' must be a number"),
        ("guardrails_settings", {"debounce_text_length": [1]}, "'debounce_text_length' must be a number"),
        ("tool_execution", {"approval_timeout": float("nan")}, "'approval_timeout' must be a number"),
        ("reconnect", 5, "a dict, got 5"),
    ],
)
async def test_a_setting_that_must_be_a_number_is_checked_before_the_entry(section, given, expected):
    with pytest.raises(UserError, match=expected):
        await RealtimeRunner(AGENT, model=LocalRealtimeModel([]), config={section: given}).run()


async def test_a_responder_that_raises_is_logged_with_its_traceback(caplog):
    class Broken:
        async def respond(self, request):
            raise LookupError("no such shelf")
            yield

    session = await RealtimeRunner(AGENT, model=LocalRealtimeModel(Broken(), pace=None)).run()
    async with record_events(session) as recorded, session:
        await session.send_message("Where?")
        failed = await recorded.wait_for("response_failed")
    assert "no such shelf" in str(failed.error)
    assert "in respond" in caplog.text


async def test_options_of_none_are_ignored():
    names = ["model_settings", "output_guardrails", "guardrails_settings", "tool_execution", "reconnect", "hooks"]
    nothing = dict.fromkeys(["initial_model_settings", "playback_tracker", "api_key", "url", "headers", "call_id"])
    model = LocalRealtimeModel(["Hello."], pace=None)
    session = await RealtimeRunner(AGENT, model=model, config=dict.fromkeys(names)).run(model_config=nothing)
    async with record_events(session) as recorded, session:
        await session.send_message("Hello?")
        await recorded.wait_for("agent_end")
    assert recorded.of_type("error") == []


async def test_an_unknown_audio_format_is_logged(caplog):
    await enter(config={"model_settings": {"output_audio_format": "mp3"}})
    (record,) = caplog.records
    assert "'mp3'" in record.getMessage()


@in_virtual_time
async def test_nested_settings_of_none_are_ignored():
    guardrails = dict.fromkeys(["debounce_text_length", "hold_back_audio", "message"])
    reconnect_options = dict.fromkeys(["attempts", "initial_delay", "max_delay"])
    async with open_scripted_session(AGENT, guardrails_settings=guardrails, reconnect=reconnect_options) as (
        _session,
        model,
        recorded,
    ):
        await model.drop()
        await recorded.wait_for("reconnected")
        assert recorded.of_type("error") == []
