"""OpenAIResponsesCompactionSession: trigger, modes, deferral, usage and validation, over real HTTP."""

from typing import Any

import pytest

from factories.history import (
    UNDERLYING,
    ThirdPartySession,
    call,
    encrypt,
    make_compaction_session,
    make_stored_session,
    make_turns,
    output,
    read_compaction,
)
from factories.items import assistant_message, user_message
from openai_server import OpenAIServer
from standfast.base.errors import InvalidInput
from standfast.history.openai.compaction import (
    OpenAIResponsesCompactionArgs,
    OpenAIResponsesCompactionAwareSession,
    OpenAIResponsesCompactionSession,
    is_openai_responses_compaction_aware_session,
)
from standfast.history.openai.conversations import OpenAIConversationsSession
from standfast.history.session import SessionSettings

# --- trigger --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", UNDERLYING)
async def test_ten_items_besides_user_messages_are_compacted(server: OpenAIServer, make: Any) -> None:
    session = make_compaction_session(server, make())
    await session.add_items([*make_turns(9), user_message("more")])
    await session.run_compaction({"response_id": "resp_1"})
    assert server.requests == []
    await session.add_items([assistant_message("a9")])
    await session.run_compaction({"response_id": "resp_2"})
    items = await session.get_items()
    assert read_compaction(items) == "all of resp_2"
    assert "created_by" not in items[-1]


async def test_compacted_items_do_not_count_towards_the_next_compaction(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items([*make_turns(9), {"type": "compaction", "encrypted_content": "x"}])
    await session.run_compaction()
    assert server.requests == []


async def test_a_history_above_the_rollback_budget_is_not_compacted(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session(), max_rollback_items=3)
    await session.add_items(make_turns(2))
    with pytest.raises(ValueError, match="max_rollback_items"):
        await session.run_compaction({"force": True})
    assert server.requests == []
    assert await session.get_items() == make_turns(2)


async def test_the_trigger_gets_the_whole_history(server: OpenAIServer) -> None:
    seen: list[dict[str, Any]] = []

    def trigger(context: dict[str, Any]) -> bool:
        seen.append(context)
        return len(seen) == 2

    session = make_compaction_session(
        server, make_stored_session(settings={"limit": 1}), should_trigger_compaction=trigger
    )
    await session.add_items(make_turns(2))
    await session.run_compaction({"response_id": "resp_1"})
    assert server.requests == []
    await session.run_compaction({"response_id": "resp_1"})
    assert len(server.requests) == 1
    assert seen[0] == {
        "response_id": "resp_1",
        "compaction_mode": "input",
        "compaction_candidate_items": [assistant_message("a0"), assistant_message("a1")],
        "session_items": make_turns(2),
    }


async def test_force_ignores_the_trigger_and_an_empty_history_is_not_compacted(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session(), should_trigger_compaction=lambda context: False)
    await session.run_compaction({"force": True})
    assert server.requests == []
    await session.add_items(make_turns(1))
    await session.run_compaction({"force": True})
    assert read_compaction(await session.get_items()) == "all of 2"


# --- mode -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "asked"),
    [
        ({}, "input"),
        ({"response_id": "resp_1"}, "previous_response_id"),
        ({"response_id": "resp_1", "store": True}, "previous_response_id"),
        ({"response_id": "resp_1", "store": False}, "input"),
        ({"response_id": "resp_1", "store": False, "compaction_mode": "previous_response_id"}, "previous_response_id"),
        ({"response_id": "resp_1", "compaction_mode": "input"}, "input"),
    ],
)
async def test_the_mode_depends_on_where_the_response_is_stored(
    server: OpenAIServer, args: OpenAIResponsesCompactionArgs, asked: str
) -> None:
    session = make_compaction_session(server, make_stored_session(), model="gpt-5.2")
    await session.add_items(make_turns(2))
    await session.run_compaction({**args, "force": True})
    (request,) = server.requests
    expected = "resp_1" if asked == "previous_response_id" else make_turns(2)
    assert request.body == {"model": "gpt-5.2", asked: expected}


async def test_a_response_id_is_remembered_until_the_history_changes(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session(), should_trigger_compaction=lambda context: False)
    await session.add_items(make_turns(2))
    await session.run_compaction({"response_id": "resp_1"})
    await session.run_compaction({"force": True})
    assert server.requests[-1].body["previous_response_id"] == "resp_1"
    await session.add_items(make_turns(1))
    await session.run_compaction({"response_id": "resp_2"})
    await session.pop_item()
    await session.run_compaction({"force": True})
    assert "input" in server.requests[-1].body
    await session.add_items(make_turns(1))
    with pytest.raises(InvalidInput, match="response_id"):
        await session.run_compaction({"force": True, "compaction_mode": "previous_response_id"})


@pytest.mark.parametrize("mode", ["auto", "previous_response_id", "input"])
@pytest.mark.parametrize(
    "make", [lambda: make_stored_session(settings={"limit": 5}), lambda: ThirdPartySession(settings=SessionSettings(5))]
)
async def test_the_limit_of_the_settings_does_not_affect_compaction(server: OpenAIServer, make: Any, mode: Any) -> None:
    session = make_compaction_session(server, make(), compaction_mode=mode)
    await session.add_items(make_turns(50))
    assert len(await session.get_items()) == 5
    await session.run_compaction({"response_id": "resp_1"})
    assert server.requests[0].body["input"] == make_turns(50)
    everything = await session.get_items(1000)
    assert read_compaction(everything) == "all of 100"
    assert len(everything) == 51


async def test_a_history_that_was_read_incompletely_is_sent_as_items(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    await session.get_items(20)
    await session.get_items(4)
    await session.run_compaction({"response_id": "resp_1"})
    assert len(server.requests[0].body["input"]) == 20
    await session.add_items(make_turns(10))
    await session.get_items()
    await session.run_compaction({"response_id": "resp_2"})
    assert server.requests[1].body["previous_response_id"] == "resp_2"


async def test_only_paired_items_are_sent(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    orphan, pair = (
        [user_message("a"), call("lost")],
        [user_message("b"), call("c1"), output("c1"), assistant_message("ok")],
    )
    await session.add_items([*orphan, *pair])
    await session.run_compaction({"force": True})
    assert server.requests[0].body["input"] == [user_message("a"), *pair]


# --- deferral ------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [{}, {"response_id": "resp_1"}])
async def test_compaction_is_deferred_until_all_calls_have_outputs(
    server: OpenAIServer, args: OpenAIResponsesCompactionArgs
) -> None:
    verdicts = iter([True])
    session = make_compaction_session(
        server, make_stored_session(), should_trigger_compaction=lambda context: next(verdicts, False)
    )
    await session.add_items([*make_turns(1), user_message("go"), call("c1"), call("c2")])
    await session.run_compaction(args)
    await session.add_items([output("c1")])
    await session.run_compaction(args)
    assert server.requests == []
    assert len(await session.get_items()) == 6
    await session.add_items([output("c2"), assistant_message("done")])
    await session.run_compaction(args)
    assert read_compaction(await session.get_items()) == f"all of {args.get('response_id', 8)}"


async def test_outputs_outside_the_response_chain_defer_compaction(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items([user_message("go"), call("c1"), output("c1")])
    await session.run_compaction({"response_id": "resp_1", "force": True})
    assert server.requests == []
    await session.add_items([assistant_message("done")])
    await session.run_compaction({"response_id": "resp_2"})
    assert read_compaction(await session.get_items()) == "all of resp_2"


async def test_input_that_the_response_chain_has_not_seen_stays_behind_the_compacted_items(
    server: OpenAIServer,
) -> None:
    for make in UNDERLYING:
        session = make_compaction_session(server, make())
        await session.add_items([*make_turns(2), user_message("unanswered")])
        await session.run_compaction({"response_id": "resp_1", "force": True})
        items = await session.get_items()
        assert [item.get("type", "message") for item in items] == ["compaction", "message"]
        assert items[-1] == user_message("unanswered")


async def test_clear_cancels_a_deferred_compaction(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items([user_message("go"), call("c1")])
    await session.run_compaction({"force": True})
    await session.clear_session()
    await session.add_items(make_turns(1))
    await session.run_compaction()
    assert server.requests == []


# --- usage, settings, validation ------------------------------------------------------------------


async def test_every_compaction_is_accounted_for_once(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    await session.run_compaction()
    (compaction,) = session.take_compactions()
    assert compaction.usage["total_tokens"] == 77
    assert compaction.usage["input_tokens_details"] == {"cached_tokens": 0}
    assert (compaction.model, compaction.mode) == ("gpt-4.1", "input")
    assert session.take_compactions() == []


async def test_the_settings_are_those_of_the_underlying_session(server: OpenAIServer) -> None:
    underlying = make_stored_session(settings={"limit": 2})
    session = make_compaction_session(server, underlying)
    assert session.session_settings is underlying.session_settings
    session.session_settings = SessionSettings(limit=1)
    await session.add_items(make_turns(2))
    assert await session.get_items() == [assistant_message("a1")]
    assert await session.get_items(0) == []
    assert await session.pop_item() == assistant_message("a1")
    await session.clear_session()
    assert await underlying.get_items() == []


def test_a_conversation_cannot_be_wrapped() -> None:
    conversation = OpenAIConversationsSession(conversation_id="conv_1")
    for refused in (OpenAIConversationsSession(), conversation, encrypt(conversation)):
        with pytest.raises(ValueError, match="server keeps its history"):
            OpenAIResponsesCompactionSession("chat", refused)


@pytest.mark.parametrize(
    "model", ["claude-opus-4", "gemini-2.5-pro", "litellm/gpt-4", "llama3", "mistral", "", None, 4]
)
def test_models_of_other_providers_are_refused(model: Any) -> None:
    with pytest.raises(ValueError):
        OpenAIResponsesCompactionSession("chat", make_stored_session(), model=model)


@pytest.mark.parametrize(
    "model", ["gpt-4.1", "gpt-5.2-mini", "o3", "o4-mini", "ft:gpt-4.1:me::x", "openai/gpt-5", "chatgpt-4o-latest"]
)
def test_models_of_openai_are_accepted(model: str) -> None:
    assert OpenAIResponsesCompactionSession("chat", make_stored_session(), model=model).model == model


@pytest.mark.parametrize(
    "args", [{"mode": "auto"}, {"compaction_mode": "sometimes"}, {"response_id": 5}], ids=["key", "mode", "id"]
)
async def test_invalid_arguments_are_refused(server: OpenAIServer, args: Any) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.add_items(make_turns(10))
    with pytest.raises(InvalidInput):
        await session.run_compaction(args)
    assert server.requests == []
    with pytest.raises(InvalidInput):
        make_compaction_session(server, make_stored_session(), compaction_mode="sometimes")


async def test_compaction_aware_sessions_are_recognised(server: OpenAIServer) -> None:
    session = make_compaction_session(server, make_stored_session())
    assert is_openai_responses_compaction_aware_session(session)
    assert isinstance(session, OpenAIResponsesCompactionAwareSession)
    for other in (None, make_stored_session(), ThirdPartySession(), OpenAIConversationsSession()):
        assert not is_openai_responses_compaction_aware_session(other)


async def test_only_a_client_that_the_session_created_is_closed(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = make_compaction_session(server, make_stored_session())
    await session.aclose()
    assert not session.client.is_closed()
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    session = OpenAIResponsesCompactionSession("chat", make_stored_session())
    await session.add_items(make_turns(10))
    await session.run_compaction()
    ours = session.client
    await session.aclose()
    assert ours.is_closed()
    assert read_compaction(await session.get_items()) == "all of 20"
