"""Items that the program deletes stay deleted when later events mention them."""

import asyncio

from factories.realtime import get_texts, open_websocket_session, send_speech, wait_until
from factories.realtime_protocol import make_speech
from standfast.realtime import RealtimeAgent, RealtimeModelSendRawMessage
from standfast.realtime.local import Say, ScriptedTranscriber
from standfast.testing import RealtimeServer
from standfast.testing.realtime.connection import Reorder

AGENT = RealtimeAgent(name="host")


def raw(kind, **other):
    return RealtimeModelSendRawMessage({"type": kind, "other_data": other})


async def delete(session, server, item_id):
    await session.model.send_event(raw("conversation.item.delete", item_id=item_id))
    await wait_until(lambda: server.connections[0].get_sent("conversation.item.deleted"))


async def test_a_message_deleted_while_it_is_spoken_stays_deleted():
    deleted = asyncio.Event()

    class Counting:
        async def respond(self, request):
            yield Say("One two three. ")
            await deleted.wait()
            yield Say("Four five six.")

    async with RealtimeServer(Counting()) as server, open_websocket_session(server, AGENT) as (session, recorded):
        await session.send_message("Count.")
        item_id = (await recorded.wait_for("transcript_delta")).item_id
        await delete(session, server, item_id)
        deleted.set()
        await recorded.wait_for("agent_end")
        assert get_texts(session) == ["Count."]
        assert [item.item_id for item in recorded.of_type("history_updated")[-1].history] == [
            session.history[0].item_id
        ]
        assert [entry.id for entry in server.connections[0].conversation] == [session.history[0].item_id]
        assert recorded.of_type("error") == []


async def test_a_deleted_user_message_does_not_return_with_its_transcript():
    completed = "conversation.item.input_audio_transcription.completed"
    transcriber = ScriptedTranscriber(["My number is 1234."])
    async with (
        RealtimeServer(["Yes.", "Yes."], transcriber=transcriber) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        server.inject(completed, Reorder("conversation.item.deleted"))
        await send_speech(session, await make_speech())
        await recorded.wait_for("agent_end")
        await delete(session, server, session.history[0].item_id)
        await wait_until(lambda: server.connections[0].get_sent(completed))
        await session.send_message("Still there?")
        await recorded.wait_for("agent_end", 2)
        assert get_texts(session) == ["Yes.", "Still there?", "Yes."]


async def test_an_item_that_the_program_adds_again_after_deletion_is_shown():
    async with RealtimeServer(["One.", "Two."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        await session.send_message("Count.")
        await recorded.wait_for("agent_end")
        answer = session.history[-1].item_id
        await delete(session, server, answer)
        await wait_until(lambda: get_texts(session) == ["Count."])
        part = {"type": "output_text", "text": "Uno."}
        item = {"id": answer, "type": "message", "role": "assistant", "content": [part]}
        await session.model.send_event(raw("conversation.item.create", item=item))
        await wait_until(lambda: get_texts(session) == ["Count.", "Uno."])
