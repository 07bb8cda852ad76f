"""History sessions together with a real websocket connection."""

import pytest

from factories.realtime import connect_options, get_texts, open_websocket_session, record_events
from standfast import EncryptedSession, RunHooks, function_tool, open_store
from standfast.realtime import ConnectionLost, OpenAIRealtimeWebSocketModel, RealtimeAgent, RealtimeRunner
from standfast.testing import RealtimeServer, ScriptedModel, assistant_message, function_call
from standfast.testing.realtime.connection import Disconnect

AGENT = RealtimeAgent(name="host")


def answer(text):
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


async def call(server, history, agent=AGENT, **config):
    settings = {"reconnect": {"initial_delay": 0.01}, **config}
    runner = RealtimeRunner(agent, model=OpenAIRealtimeWebSocketModel(), config=settings)
    return await runner.run(model_config=connect_options(server), session=history)


class Ends(RunHooks):
    def __init__(self):
        self.outputs = []

    async def on_agent_end(self, context, agent, output):
        self.outputs.append(output)


async def test_messages_of_an_earlier_session_do_not_belong_to_the_first_response():
    hooks = Ends()
    async with RealtimeServer(["Hello Ann."]) as server, open_store("memory://") as store:
        history = store.session("s")
        await history.add_items([{"role": "user", "content": "I am Ann."}, answer("Good day.")])
        session = await call(server, history, hooks=hooks)
        async with record_events(session) as recorded, session:
            await session.send_message("Who am I?")
            await recorded.wait_for("agent_end")
    assert hooks.outputs == ["Hello Ann."]


async def test_items_that_a_server_repeats_after_a_replay_emit_no_event():
    items = []
    for number in range(100):
        called = {"type": "function_call", "call_id": f"c{number}", "name": "note", "arguments": "{}"}
        noted = {"type": "function_call_output", "call_id": f"c{number}", "output": "noted"}
        items += [{"role": "user", "content": f"note {number}"}, called, noted, answer(f"noted {number}")]
    async with RealtimeServer() as server, open_store("memory://") as store:
        history = store.session("s")
        await history.add_items(items)
        session = await call(server, history)
        async with record_events(session) as recorded, session:
            await session.send_message("How many notes are there?")
            await recorded.wait_for("agent_end")
            server.connections[0].close()
            await recorded.wait_for("reconnected")
            await session.send_message("And now?")
            await recorded.wait_for("agent_end", 2)
            assert len(session.history) == 304
            assert len(server.connections[1].conversation.items) == 404
        assert len(recorded.of_type("history_updated")) < 20


async def test_calls_of_a_history_that_have_the_same_id_keep_their_outputs():
    items = []
    for city in ("Rome", "Oslo"):
        called = {"type": "function_call", "call_id": "call_0", "name": "look", "arguments": f'{{"city": "{city}"}}'}
        items += [{"role": "user", "content": city}, called]
        items += [{"type": "function_call_output", "call_id": "call_0", "output": f"sunny in {city}"}]
    async with RealtimeServer() as server, open_store("memory://") as store:
        history = store.session("s")
        await history.add_items(items)
        session = await call(server, history)
        async with record_events(session) as recorded, session:
            await session.send_message("And?")
            await recorded.wait_for("agent_end")
            made = [item for item in session.history if item.type == "function_call"]
            assert [item.output for item in made] == ["sunny in Rome", "sunny in Oslo"]
            outputs = {item.get("call_id"): item.get("output") for item in server.connections[0].conversation.items}
            assert [outputs[item.call_id] for item in made] == ["sunny in Rome", "sunny in Oslo"]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"degrees": 21}, '{"degrees": 21}'),
        (
            [{"type": "input_text", "text": "sunny"}, {"type": "input_image", "image_url": "data:"}],
            "sunny\n[input_image]",
        ),
        (["sunny", 21], '["sunny", 21]'),
        (None, "null"),
    ],
)
async def test_a_history_whose_calls_have_values_in_place_of_texts_can_be_continued(output, expected):
    called = {"type": "function_call", "call_id": "c", "name": "look", "arguments": {"city": "Rome"}}
    async with RealtimeServer(["Yes."]) as server, open_store("memory://") as store:
        history = store.session("s")
        await history.add_items([called, {"type": "function_call_output", "call_id": "c", "output": output}])
        session = await call(server, history)
        async with record_events(session) as recorded, session:
            await session.send_message("Is that so?")
            await recorded.wait_for("agent_end")
            made = server.connections[0].conversation.items[:2]
            assert [made[0]["arguments"], made[1]["output"]] == ['{"city": "Rome"}', expected]
        assert recorded.of_type("error") == []


async def test_a_model_that_gives_all_its_calls_the_same_id_gets_all_of_them_answered():
    @function_tool
    async def look(city: str) -> str:
        return f"sunny in {city}"

    calls = [[function_call("look", {"city": city}, call_id="call_0")] for city in ("Rome", "Oslo")]
    responder = ScriptedModel([*calls, [assistant_message("Sunny.")]])
    agent = RealtimeAgent(name="a", tools=[look])
    async with RealtimeServer(responder) as server, open_websocket_session(server, agent) as (session, recorded):
        await session.send_message("How is the weather in Rome and Oslo?")
        await recorded.wait_for("agent_end", 3)
        outputs = [item.output for item in session.history if item.type == "function_call"]
        assert outputs == ["sunny in Rome", "sunny in Oslo"]


async def test_a_lost_message_is_resent_although_an_equal_one_was_sent_before():
    async with RealtimeServer() as server, open_store("memory://") as store:
        history = store.session("s")
        await history.add_items([{"role": "user", "content": text} for text in ("Yes.", *map(str, range(100)))])
        session = await call(server, history)
        async with record_events(session) as recorded, session:
            await session.send_message("Is it red?")
            await recorded.wait_for("agent_end")
            server.inject("conversation.item.create", Disconnect())
            await session.send_message("Yes.")
            await recorded.wait_for("agent_end", 2)
            users = [text for text in get_texts(session) if text == "Yes."]
            outputs = [item["content"][0].get("text") for item in server.connections[1].conversation.items]
            assert (len(users), outputs.count("Yes.")) == (2, 2)


class Four:
    """A third-party history session with the four methods of the protocol."""

    session_id = "theirs"

    def __init__(self):
        self.items = []

    async def get_items(self, limit=None):
        return list(self.items)

    async def add_items(self, items):
        self.items += items

    async def pop_item(self):
        return self.items.pop() if self.items else None

    async def clear_session(self):
        self.items.clear()


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_session_is_written_to_a_third_party_history(encrypted):
    theirs = Four()
    history = EncryptedSession("theirs", theirs, encryption_key="secret" * 6) if encrypted else theirs
    async with RealtimeServer(["Hello Ann."]) as server:
        session = await call(server, history)
        async with record_events(session) as recorded, session:
            await session.send_message("I am Ann.")
            await recorded.wait_for("agent_end")
            assert (await session.close()).unwritten_count == 0
        assert [item["role"] for item in await history.get_items()] == ["user", "assistant"]
    assert ("Ann" in str(theirs.items)) is not encrypted
    assert recorded.of_type("error") == []


async def test_a_connection_lost_during_the_replay_makes_the_entry_raise():
    async with RealtimeServer() as server, open_store("memory://") as store:
        history = store.session("s")
        await history.add_items([{"role": "user", "content": str(number)} for number in range(200)])
        server.inject("conversation.item.create", Disconnect(), skip=3)
        session = await call(server, history)
        with pytest.raises(ConnectionLost) as raised:
            await session.enter()
        assert raised.value.close_code == 1006
