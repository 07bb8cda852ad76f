"""Public attributes of objects that programs make."""

from typing import Any

import pytest
from openai import AsyncOpenAI


def test_sessions_know_where_they_are_stored(lib: Any, tmp_path: Any) -> None:
    path = str(tmp_path / "a.db")
    session = lib.SQLiteSession("a", path, sessions_table="s", messages_table="m")
    assert (session.db_path, session.sessions_table, session.messages_table) == (path, "s", "m")
    session.close()
    advanced = lib.AdvancedSQLiteSession(session_id="a", create_tables=True)
    assert (advanced.db_path, advanced.messages_table) == (":memory:", "agent_messages")
    advanced.close()
    inner = lib.SQLiteSession("a")
    assert lib.EncryptedSession("a", inner, "a-very-secret-key-of-mine", ttl=5).ttl == 5
    inner.close()


def test_servers_have_their_settings_and_no_session_before_they_are_connected(lib: Any) -> None:
    server = lib.MCPServerStdio(params={"command": "x"}, cache_tools_list=True)
    assert (server.cache_tools_list, server.session, server.server_initialize_result) == (True, None, None)
    manager = lib.MCPServerManager([], connect_in_parallel=True, drop_failed_servers=False)
    assert (manager.connect_in_parallel, manager.drop_failed_servers) == (True, False)
    assert (manager.suppress_cancelled_error, manager.strict) == (True, False)


def test_models_have_their_name_and_settings(lib: Any) -> None:
    pytest.importorskip("numpy")
    client = AsyncOpenAI(api_key="k")

    def replay(context: Any) -> bool:
        return True

    chat = lib.OpenAIChatCompletionsModel("m", client, should_replay_reasoning_content=replay)
    assert (chat.model, chat.should_replay_reasoning_content) == ("m", replay)
    assert lib.OpenAIRealtimeWebSocketModel().model == "gpt-realtime-2.1"
    speech = lib.OpenAITTSModel("m", client)
    pipeline = lib.VoicePipeline(workflow=lib.SingleAgentVoiceWorkflow(lib.Agent(name="a")), tts_model=speech)
    assert (speech.model, lib.OpenAISTTModel("m", client).model, pipeline.tts_model) == ("m", "m", speech)
