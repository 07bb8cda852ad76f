"""Lost connections: replaced, with the history replayed and pending work settled."""

import asyncio

import pytest

from factories.fragile_realtime_model import FragileModel
from factories.realtime import (
    audio_chunk,
    get_sent_inputs,
    get_texts,
    in_virtual_time,
    open_scripted_session,
    record_events,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    user_message_added,
    wait_until,
)
from standfast import function_tool
from standfast.realtime import (
    RealtimeAgent,
    RealtimeModelSendInterrupt,
    RealtimeModelSendRawMessage,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendToolOutput,
    RealtimeModelSendUserInput,
    RealtimeRunner,
    RealtimeState,
)
from standfast.realtime.errors import ConnectionLost
from standfast.realtime.items import InputAudio, RealtimeToolCallItem, UserMessageItem
from standfast.realtime.local import EnergyDetector, Pause, ToneTTS
from standfast.realtime.model_events import (
    RealtimeModelAudioEvent,
    RealtimeModelAudioInterruptedEvent,
    RealtimeModelConnectionStatusEvent,
    RealtimeModelItemDeletedEvent,
    RealtimeModelItemUpdatedEvent,
    RealtimeModelOutputTextDeltaEvent,
    RealtimeModelTranscriptDeltaEvent,
)
from standfast.realtime.testing import ScriptedRealtimeModel
from standfast.testing.virtual_time import run_in_virtual_time

Raw, Output = RealtimeModelSendRawMessage, RealtimeModelSendToolOutput
AGENT = RealtimeAgent(name="host")


def replayed(model):
    raw = [event.message for event in get_sent_inputs(model, Raw)]
    return [message["other_data"]["item"] for message in raw if message["type"] == "conversation.item.create"]


def requests(model):
    return [event for event in get_sent_inputs(model, Raw) if event.message["type"] == "response.create"]


async def test_an_idle_connection_is_replaced_and_gets_the_history():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(user_message_added("hello"), response_started(), text_delta("good day"), response_ended())
        await model.drop()
        again = await recorded.wait_for("reconnected")
        assert (again.attempts, again.planned, session.state) == (1, False, RealtimeState.OPEN)
        assert isinstance(recorded.of_type("reconnecting")[0].error, ConnectionLost)
        assert [(item["role"], item["content"][0]["text"]) for item in replayed(model)] == [
            ("user", "hello"),
            ("assistant", "good day"),
        ]
        assert len(model.connect_calls) == 2
        assert requests(model) == []
        assert session.metrics["reconnect_gap"].count == 1
        await session.send_message("still there?")
        assert get_sent_inputs(model, RealtimeModelSendUserInput)


async def test_a_connection_that_the_server_closes_cleanly_is_replaced():
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        await model.emit(RealtimeModelConnectionStatusEvent("disconnected", code=1000))
        await recorded.wait_for("reconnected")
        assert recorded.of_type("reconnecting")[0].error is None


async def test_a_lost_response_is_reported_and_requested_again_if_nothing_was_heard():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(user_message_added("hello"), response_started())
        await model.drop()
        await recorded.wait_for("reconnected")
        failed = await recorded.wait_for("response_failed")
        assert (failed.response_id, failed.status) == ("r1", "lost")
        assert (await recorded.wait_for("agent_end")).status == "lost"
        await wait_until(lambda: requests(model))
        await model.emit(response_started("r2"), text_delta("hi", "i2", "r2"), audio_chunk(100, "i2", "r2"))
        await model.drop()
        await recorded.wait_for("reconnected", 2)
        await asyncio.sleep(0.01)
        assert len(requests(model)) == 1
        assert session.history[-1].status == "incomplete"


async def test_a_transcript_without_audio_was_not_heard_and_the_response_is_requested_again():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(user_message_added("hello"), response_started(), text_delta("Good"))
        await model.drop()
        await recorded.wait_for("reconnected")
        await wait_until(lambda: requests(model))
        assert [item["role"] for item in replayed(model)] == ["user"]
        assert get_texts(session) == ["hello", ""]
        assert session.history[-1].content[0].generated_transcript == "Good"


async def test_a_written_response_is_not_requested_again():
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        await model.emit(
            user_message_added("hello"), response_started(), RealtimeModelOutputTextDeltaEvent("i1", "Good", "r1")
        )
        await model.drop()
        await recorded.wait_for("reconnected")
        await wait_until(lambda: len(replayed(model)) == 2)
        await asyncio.sleep(0.01)
        assert requests(model) == []


@pytest.mark.parametrize("when", ["before the loss", "after the loss"])
async def test_an_interrupted_response_is_not_requested_again(when):
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(user_message_added("hello"), response_started())
        if when == "after the loss":
            await model.drop()
            await session.interrupt()
        else:
            stopping = asyncio.create_task(session.interrupt())
            await wait_until(lambda: get_sent_inputs(model, RealtimeModelSendInterrupt))
            await model.drop()
            await stopping
        await recorded.wait_for("reconnected")
        await asyncio.sleep(0.01)
        assert requests(model) == []


async def test_of_two_lost_responses_the_uninterrupted_one_is_requested_again():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(user_message_added("first"), response_started())
        await session.send_message("second")
        await model.emit(user_message_added("second", "u2"))
        await model.drop()
        await session.interrupt()
        await recorded.wait_for("reconnected")
        await wait_until(lambda: requests(model))


async def test_a_message_that_the_lost_connection_did_not_confirm_is_resent():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await session.send_message("first")
        await model.emit(user_message_added("first"))
        await session.send_message("second")
        await model.drop()
        await recorded.wait_for("reconnected")
        await wait_until(lambda: len(get_sent_inputs(model, RealtimeModelSendUserInput)) == 3)
        assert get_sent_inputs(model, RealtimeModelSendUserInput)[-1].user_input == "second"


async def test_a_message_in_parts_is_not_confirmed_by_speech_of_the_user():
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="}
    message = {"type": "message", "role": "user", "content": [picture]}
    spoken = UserMessageItem(item_id="u1", content=[InputAudio()])
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await session.send_message(message)
        await model.emit(RealtimeModelItemUpdatedEvent(spoken))
        await model.drop()
        await recorded.wait_for("reconnected")
        await wait_until(lambda: len(get_sent_inputs(model, RealtimeModelSendUserInput)) == 2)


async def test_a_running_tool_continues_and_answers_the_new_connection():
    gate, made = asyncio.Event(), []

    @function_tool
    async def slow() -> str:
        made.append(1)
        await gate.wait()
        return "done"

    async with open_scripted_session(RealtimeAgent(name="a", tools=[slow])) as (_session, model, recorded):
        await model.emit(response_started(), tool_call("slow"), response_ended())
        await recorded.wait_for("tool_start")
        await model.drop()
        await recorded.wait_for("reconnected")
        assert [item["type"] for item in replayed(model)] == ["function_call"]
        gate.set()
        await recorded.wait_for("tool_end")
        assert [event.output for event in get_sent_inputs(model, Output)] == ["done"]
    assert made == [1]


async def test_an_output_completed_while_disconnected_is_replayed_and_gets_a_response():
    gate = asyncio.Event()

    @function_tool
    async def slow() -> str:
        await gate.wait()
        return "done"

    class Late(ScriptedRealtimeModel):
        async def connect(self, options):
            if self.connect_calls:
                gate.set()
                await asyncio.sleep(0.01)
            await super().connect(options)

    async with open_scripted_session(RealtimeAgent(name="a", tools=[slow]), Late(strict=False)) as (
        _session,
        model,
        recorded,
    ):
        await model.emit(response_started(), tool_call("slow"), response_ended())
        await recorded.wait_for("tool_start")
        await model.drop()
        await recorded.wait_for("tool_end")
        assert [item["type"] for item in replayed(model)] == ["function_call", "function_call_output"]
        assert get_sent_inputs(model, Output) == []
        await wait_until(lambda: requests(model))


async def test_a_call_that_waits_for_a_person_keeps_waiting():
    @function_tool(needs_approval=True)
    async def delete() -> str:
        return "deleted"

    async with open_scripted_session(RealtimeAgent(name="a", tools=[delete])) as (session, model, recorded):
        await model.emit(response_started(), tool_call("delete"), response_ended())
        await recorded.wait_for("tool_approval_required")
        await model.drop()
        await recorded.wait_for("reconnected")
        assert await session.approve_tool_call("c1")
        await recorded.wait_for("tool_end")
        assert get_sent_inputs(model, Output)[0].output == "deleted"


async def test_a_handoff_interrupted_by_a_lost_connection_is_completed_by_the_next():
    other = RealtimeAgent(name="other", instructions="I am another.")

    class Fragile(ScriptedRealtimeModel):
        dropped = False

        async def send_event(self, event):
            if isinstance(event, RealtimeModelSendSessionUpdate) and not self.dropped:
                self.dropped = True
                await self.drop()
                raise ConnectionLost("dropped before the acknowledgement")
            await super().send_event(event)

    agent = RealtimeAgent(name="a", instructions="I am the first.", handoffs=[other])
    async with open_scripted_session(agent, Fragile(strict=False)) as (session, model, recorded):
        await model.emit(response_started(), tool_call("transfer_to_other"), response_ended())
        await recorded.wait_for("handoff")
        assert session.current_agent is other
        assert len(recorded.of_type("agent_changed")) == 1
        assert model.connect_calls[1]["initial_model_settings"]["instructions"] == "I am the first."
        assert (
            get_sent_inputs(model, RealtimeModelSendSessionUpdate)[0].session_settings["instructions"]
            == "I am another."
        )
        await wait_until(lambda: get_sent_inputs(model, Output))


async def test_after_a_handoff_the_new_connection_gets_the_new_agents_settings():
    other = RealtimeAgent(name="other", instructions="I am another.")
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await session.update_agent(other)
        await model.drop()
        await recorded.wait_for("reconnected")
        assert model.connect_calls[1]["initial_model_settings"]["instructions"] == "I am another."


async def test_without_a_connection_messages_wait_and_audio_is_dropped():
    gate = asyncio.Event()

    class Slow(ScriptedRealtimeModel):
        async def connect(self, options):
            if self.connect_calls:
                await gate.wait()
            await super().connect(options)

    async with open_scripted_session(AGENT, Slow(strict=False)) as (session, model, recorded):
        await model.drop()
        await recorded.wait_for("reconnecting")
        assert session.state is RealtimeState.RECONNECTING
        await session.send_audio(b"stale")
        await session.interrupt()
        saying = asyncio.ensure_future(session.send_message("patience"))
        await asyncio.sleep(0.01)
        assert not saying.done()
        gate.set()
        await saying
        assert [type(event) for event in model.sent_events] == [RealtimeModelSendUserInput]


async def test_failed_attempts_are_reported_and_the_last_one_ends_the_session():
    config = {"attempts": 3, "initial_delay": 0.001, "max_delay": 0.002}
    model = ScriptedRealtimeModel(strict=False)
    session = await RealtimeRunner(AGENT, model=model, config={"reconnect": config}).run()
    async with record_events(session) as recorded, session:
        model.connect_error = ConnectionError("no route")
        await model.drop()
        report = (await recorded.wait_for("session_closed")).report
        assert (report.reason, str(report.error)) == ("failed", "no route")
        assert [event.attempt for event in recorded.of_type("reconnecting")] == [1, 2, 3]
    with pytest.raises(ConnectionError, match="no route"):
        await anext(session.events())


def test_short_lived_connections_are_replaced_with_growing_delays():
    async def flapping():
        config = {"initial_delay": 0.5, "max_delay": 6.0}
        async with open_scripted_session(AGENT, reconnect=config) as (_session, model, recorded):
            for number in range(1, 8):
                await model.drop()
                await recorded.wait_for("reconnected", number)
            await asyncio.sleep(60)
            await model.drop()
            await recorded.wait_for("reconnected", 8)
            delays = [event.delay for event in recorded.of_type("reconnecting")]
            longest = [0.5, 1, 2, 4, 6, 6, 6, 0.5]
            assert len(delays) == len(longest)
            assert all(most / 2 <= delay <= most for delay, most in zip(delays, longest, strict=True))

    run_in_virtual_time(flapping())


async def test_without_reconnecting_a_loss_ends_the_session_with_its_reason():
    async with open_scripted_session(AGENT, reconnect={"attempts": 0}) as (_session, model, recorded):
        await model.drop()
        assert isinstance((await recorded.wait_for("session_closed")).report.error, ConnectionLost)


async def test_callers_that_wait_for_a_connection_get_the_end_of_the_session():
    from standfast.base.errors import Closed

    async with open_scripted_session(AGENT, reconnect={"initial_delay": 60, "max_delay": 60}) as (
        session,
        model,
        recorded,
    ):
        await model.drop()
        await recorded.wait_for("reconnecting")
        saying = asyncio.ensure_future(session.send_message("hello?"))
        await asyncio.sleep(0)
        await session.close()
        with pytest.raises(Closed):
            await saying


@in_virtual_time
async def test_a_connection_is_rolled_over_while_the_session_is_idle():
    config = {"roll_over_after": 0.05, "initial_delay": 0.001}
    async with open_scripted_session(AGENT, reconnect=config) as (_session, model, recorded):
        await model.emit(user_message_added("hi"), response_started())
        await asyncio.sleep(0.12)
        assert recorded.of_type("reconnecting") == []
        await model.emit(response_ended())
        assert (await recorded.wait_for("reconnected")).planned
        assert len(model.connect_calls) == 2


async def test_items_that_are_not_replayed_keep_their_position():
    unheard = UserMessageItem(item_id="u3", content=[InputAudio()])
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(
            user_message_added("one"), user_message_added("two", "u2"), RealtimeModelItemUpdatedEvent(unheard)
        )
        await model.drop()
        await recorded.wait_for("reconnected")
        await model.emit(user_message_added("one"), user_message_added("two", "u2", previous="u1"))
        assert [item.item_id for item in session.history] == ["u1", "u2", "u3"]


async def test_messages_during_a_resend_follow_the_resent_item():
    cut = RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=500, from_previous_connection=True)
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        await model.emit(
            user_message_added("hello"),
            response_started(),
            text_delta("one two three four"),
            audio_chunk(1000),
            response_ended(),
        )
        await model.emit(cut)
        retold = await wait_until(lambda: replayed(model))
        assert [item["content"][0]["text"] for item in retold] == ["one two"]
        # To the server, the answer was gone for a moment, and then it is back in its place.
        await model.emit(RealtimeModelItemDeletedEvent("i1"), user_message_added("stop", "u2", previous="u1"))
        assert [item.item_id for item in session.history] == ["u1", "i1", "u2"]


@pytest.mark.parametrize("late", [False, True])
async def test_a_message_after_a_call_is_resent_after_the_existing_items(late):
    call = {"item_id": "f1", "call_id": "c1", "status": "completed", "arguments": "{}", "name": "look"}
    answered = RealtimeModelItemUpdatedEvent(RealtimeToolCallItem(**call, output="ok", output_item_id="o1"))
    asked = RealtimeModelItemUpdatedEvent(RealtimeToolCallItem(**call))
    cut = RealtimeModelAudioInterruptedEvent("i1", 0, response_id="r1", audio_end_ms=500, from_previous_connection=True)
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        await model.emit(asked if late else answered)
        await model.emit(response_started(), text_delta("one two three four"), audio_chunk(1000), response_ended())
        await model.drop()
        await recorded.wait_for("reconnected")
        known = ["f1", "i1"] if late else ["f1", "o1", "i1"]
        assert [item.get("id") for item in replayed(model)] == known
        await model.emit(answered, cut)
        await wait_until(lambda: len(replayed(model)) == len(known) + 1)
        assert get_sent_inputs(model, Raw)[-1].message["other_data"]["previous_item_id"] == ("f1" if late else "o1")


def spoken(text, index):
    return RealtimeModelTranscriptDeltaEvent("i1", text, "r1", content_index=index)


def cut_part(index):
    return RealtimeModelAudioInterruptedEvent(
        "i1", index, response_id="r1", audio_end_ms=500, from_previous_connection=True
    )


def forgotten(model):
    """The acknowledgements of the server."""
    deletes = [event for event in get_sent_inputs(model, Raw) if event.message["type"] == "conversation.item.delete"]
    return [RealtimeModelItemDeletedEvent(event.message["other_data"]["item_id"]) for event in deletes]


async def test_a_message_with_two_truncated_parts_is_resent_in_its_final_state():
    second = RealtimeModelAudioEvent(bytes(48_000), "r1", "i1", 1)
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        await model.emit(
            user_message_added("hello"), response_started(), text_delta("one two three four"), audio_chunk(1000)
        )
        await model.emit(spoken("five six seven eight", 1), second, response_ended())
        await model.emit(cut_part(0), cut_part(1))
        await wait_until(lambda: replayed(model) and len(replayed(model)) == len(forgotten(model)))
        assert replayed(model)[-1]["content"][0]["text"] == "one two\nfive six"
        await model.emit(*forgotten(model), user_message_added("stop", "u2", previous="u1"))
        assert [item.item_id for item in session.history] == ["u1", "i1", "u2"]


async def test_a_message_that_is_truncated_again_is_resent_again():
    again = RealtimeModelAudioInterruptedEvent(
        "i1", 0, response_id="r1", audio_end_ms=250, from_previous_connection=True
    )
    async with open_scripted_session(AGENT) as (session, model, _recorded):
        await model.emit(
            user_message_added("hello"),
            response_started(),
            text_delta("one two three four"),
            audio_chunk(1000),
            response_ended(),
        )
        await model.emit(cut_part(0))
        await wait_until(lambda: replayed(model))
        await model.emit(again)
        await wait_until(lambda: len(replayed(model)) == 2)
        assert [item["content"][0]["text"] for item in replayed(model)] == ["one two", "one"]
        await model.emit(*forgotten(model))
        assert [item.item_id for item in session.history] == ["u1", "i1"]
        await model.emit(RealtimeModelItemDeletedEvent("i1"))
        assert [item.item_id for item in session.history] == ["u1"]


async def test_a_temporary_deletion_may_be_permanent_on_the_next_connection():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await model.emit(
            user_message_added("hello"),
            response_started(),
            text_delta("one two three four"),
            audio_chunk(1000),
            response_ended(),
        )
        await model.emit(cut_part(0))
        await wait_until(lambda: replayed(model))
        await model.drop()
        await recorded.wait_for("reconnected")
        await model.emit(RealtimeModelItemDeletedEvent("i1"))
        assert [item.item_id for item in session.history] == ["u1"]


@in_virtual_time
async def test_only_the_next_connection_gets_the_request_again():
    model = FragileModel([[Pause(1), "Never heard."], "Good day."], tts=ToneTTS(), detector=EnergyDetector)
    session = await RealtimeRunner(AGENT, model=model).run()
    async with record_events(session) as recorded, session:
        await session.send_message("Hello")
        await recorded.wait_for("agent_start")
        model.link.snap()
        await recorded.wait_for("agent_end", 2)
        assert get_texts(session) == ["Hello", "Good day."]
        assert recorded.of_type("error") == []
