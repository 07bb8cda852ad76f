"""Entry, exit, iterators and ownership of a session."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from factories.realtime import (
    WAIT_TIMEOUT,
    audio_chunk,
    get_sent_inputs,
    in_virtual_time,
    open_scripted_session,
    record_events,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    wait_until,
)
from standfast import UserError, function_tool, open_store, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.base.errors import Closed
from standfast.lifecycle.scope import AlreadyStarted
from standfast.realtime import (
    OpenAIRealtimeWebSocketModel,
    RealtimeAgent,
    RealtimeModel,
    RealtimeModelListener,
    RealtimeModelSendSessionUpdate,
    RealtimeModelSendUserInput,
    RealtimeRunner,
    RealtimeSession,
    RealtimeState,
    realtime_handoff,
)
from standfast.realtime._session.context import TABLE, RealtimeLifecycleEvent
from standfast.realtime.errors import ConnectionLost, NotConnected
from standfast.realtime.model_events import (
    RealtimeModelConnectionStatusEvent,
    RealtimeModelEndOfStreamEvent,
    RealtimeModelExceptionEvent,
)
from standfast.realtime.testing import ScriptedRealtimeModel
from standfast.testing.interruption import cancel_at_every_await

AGENT = RealtimeAgent(name="host", instructions="Be kind.")


def scripted(**more):
    return ScriptedRealtimeModel(strict=False, **more)


def test_the_states_of_a_session_form_a_valid_table():
    TABLE.check(stop=RealtimeLifecycleEvent.CLOSE_REQUESTED)


async def test_nothing_is_connected_before_the_session_is_entered():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    assert (model.connect_calls, model.listeners, session.state) == ((), (), RealtimeState.NEW)
    await session.close()
    assert session.state is RealtimeState.CLOSED


async def test_the_model_is_connected_with_the_settings_of_the_agent():
    model = scripted()
    config = {"model_settings": {"voice": "ash"}, "tracing_disabled": True}
    session = await RealtimeRunner(AGENT, model=model, config=config).run()
    async with session:
        settings = model.connect_calls[0]["initial_model_settings"]
    assert settings["instructions"] == "Be kind."
    assert (settings["voice"], settings["tracing"], settings["tools"]) == ("ash", None, [])


def failing(*_):
    raise ValueError("no")


@function_tool(is_enabled=failing)
def broken() -> str:
    return ""


@pytest.mark.parametrize(
    "agent",
    [
        RealtimeAgent(name="a", instructions=failing),
        RealtimeAgent(name="a", tools=[broken]),
        RealtimeAgent(name="a", handoffs=[realtime_handoff(AGENT, is_enabled=failing)]),
    ],
    ids=["instructions", "tools", "handoffs"],
)
async def test_an_entry_that_fails_while_resolving_leaves_nothing_behind(agent):
    model = scripted()
    session = await RealtimeRunner(agent, model=model).run()
    with pytest.raises(ValueError, match="no"):
        await session.enter()
    assert (model.listeners, model.connect_calls, session.state) == ((), (), RealtimeState.CLOSED)


async def test_a_failed_entry_waits_for_other_parts_that_are_being_resolved():
    asked, over = asyncio.Event(), []

    async def slowly(context, agent):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            over.append("instructions")

    async def failing_later(context, agent):
        await asked.wait()
        raise ValueError("no")

    way = realtime_handoff(AGENT, is_enabled=failing_later)
    session = await RealtimeRunner(RealtimeAgent(name="a", instructions=slowly, handoffs=[way]), model=scripted()).run()
    with pytest.raises(ValueError, match="no"):
        await session.enter()
    assert over == ["instructions"]


async def test_duplicate_names_are_refused_before_connecting():
    @function_tool
    def transfer_to_b() -> str:
        return ""

    model = scripted()
    agent = RealtimeAgent(name="a", tools=[transfer_to_b], handoffs=[RealtimeAgent(name="b")])
    session = await RealtimeRunner(agent, model=model).run()
    with pytest.raises(UserError, match="transfer_to_b"):
        await session.enter()
    assert model.listeners == ()


async def test_a_failed_connection_removes_the_listener_and_ends_waiting_iterators():
    model = scripted(connect_error=ConnectionError("refused"))
    session = await RealtimeRunner(AGENT, model=model).run()
    async with record_events(session):
        with pytest.raises(ConnectionError, match="refused"):
            await session.enter()
    assert model.listeners == ()
    with pytest.raises(ConnectionError):
        await anext(session.events())
    with pytest.raises(AlreadyStarted):
        await session.enter()


@pytest.mark.parametrize(
    ("first_event", "error"),
    [
        (RealtimeModelExceptionEvent(RuntimeError("gone")), RuntimeError),
        (RealtimeModelConnectionStatusEvent("disconnected", code=1011), ConnectionLost),
        (RealtimeModelConnectionStatusEvent("disconnected", code=1000), ConnectionLost),
        (RealtimeModelEndOfStreamEvent(), ConnectionLost),
    ],
    ids=["failed", "lost", "closed", "ended"],
)
async def test_a_connection_that_ends_during_the_entry_fails_the_entry(first_event, error):
    model = scripted(connect_events=[first_event])
    session = await RealtimeRunner(AGENT, model=model).run()
    async with record_events(session) as recorded:
        with pytest.raises(error):
            await session.enter()
        assert (await recorded.wait_for("session_closed")).report.reason == "failed"
    assert (model.connected, model.listeners, session.state) == (False, (), RealtimeState.CLOSED)


async def test_an_entry_cancelled_at_any_moment_releases_everything():
    gate = asyncio.Event()

    class Slow(ScriptedRealtimeModel):
        async def connect(self, options):
            await gate.wait()

    model = Slow(strict=False)
    session = await RealtimeRunner(AGENT, model=model).run()
    entering = asyncio.ensure_future(session.enter())
    await wait_until(lambda: model.listeners)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert (model.listeners, session.state) == ((), RealtimeState.CLOSED)


async def test_a_second_entry_is_refused_and_harms_nothing():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        with pytest.raises(AlreadyStarted):
            await session.enter()
        await model.emit(response_started(), response_ended())
        assert (await recorded.wait_for("agent_end")).agent is AGENT


async def test_an_entry_after_the_end_is_refused():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    await session.close()
    with pytest.raises(Closed):
        await session.enter()
    assert model.connect_calls == ()


async def test_closing_ends_every_waiting_iterator():
    async with open_scripted_session(AGENT) as (session, _model, recorded):
        async with record_events(session) as second:
            await session.close()
            await recorded.wait_for("session_closed")
            await second.wait_for("session_closed")
        assert (await anext(session.events(), None)) is None


async def test_closing_again_and_at_the_same_time_is_harmless():
    class Counted(ScriptedRealtimeModel):
        closed = 0

        async def close(self):
            self.closed += 1
            await super().close()

    async with open_scripted_session(AGENT, Counted(strict=False)) as (session, model, _recorded):
        reports = await asyncio.gather(session.close(), session.close(), asyncio.create_task(session.close()))
        assert reports[0] is reports[1] is reports[2]
        assert await session.close() is reports[0]
        assert (model.connected, model.listeners, model.closed) == (False, (), 1)
    assert model.closed == 1


async def test_cancelling_a_caller_of_close_does_not_stop_the_closing():
    gate = asyncio.Event()

    class Slow(ScriptedRealtimeModel):
        async def close(self):
            await gate.wait()
            await super().close()

    model = Slow(strict=False)
    async with open_scripted_session(AGENT, model) as (session, _, recorded):
        first = asyncio.ensure_future(session.close())
        await wait_until(lambda: session.state is RealtimeState.CLOSING)
        first.cancel()
        await asyncio.wait({first})
        gate.set()
        await session.close()
        await recorded.wait_for("session_closed")
    assert not model.connected


async def test_a_model_that_fails_to_close_is_reported_once_and_iterators_end():
    model = scripted(close_error=RuntimeError("stuck"))
    session = await RealtimeRunner(AGENT, model=model).run()
    async with record_events(session) as recorded:
        await session.enter()
        with pytest.raises(RuntimeError, match="stuck"):
            await session.close()
        assert str((await recorded.wait_for("session_closed")).report.error) == "stuck"
    report = await session.close()
    assert (session.state, report.reason) == (RealtimeState.CLOSED, "asked")


@in_virtual_time
async def test_a_stalled_model_is_cut_off_at_the_deadline():
    class Stalled(ScriptedRealtimeModel):
        async def close(self):
            await asyncio.Event().wait()

    async with open_scripted_session(AGENT, Stalled(strict=False)) as (session, _model, _recorded):
        before = asyncio.get_running_loop().time()
        report = await session.close(deadline=0.2)
        assert asyncio.get_running_loop().time() - before < 0.5
        assert report.cancelled == ("model",)


@in_virtual_time
async def test_a_tool_that_waits_for_a_change_of_the_agent_does_not_delay_the_end():
    class Silent(ScriptedRealtimeModel):
        async def send_event(self, event):
            if isinstance(event, RealtimeModelSendSessionUpdate):
                await asyncio.sleep(1_000)

    @function_tool
    async def change() -> str:
        await session.update_agent(RealtimeAgent(name="other"))
        return ""

    now = asyncio.get_running_loop().time
    agent = RealtimeAgent(name="host", tools=[change])
    async with open_scripted_session(agent, Silent(strict=False)) as (session, model, recorded):
        await model.emit(response_started(), tool_call("change"))
        await recorded.wait_for("tool_start")
        await asyncio.sleep(1)
        began = now()
        report = await session.close()
        assert now() - began < 0.1
        assert (report.cancelled, report.still_running) == ((), ())


@pytest.mark.parametrize("holds_up", ["tool", "model"])
@in_virtual_time
async def test_a_close_with_a_shorter_deadline_is_not_delayed_by_a_longer_one(holds_up):
    released, now = asyncio.Event(), asyncio.get_running_loop().time

    async def stubborn() -> str:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()
        return ""

    class Stalled(ScriptedRealtimeModel):
        async def close(self):
            if holds_up == "model":
                await released.wait()

    agent = RealtimeAgent(name="host", tools=[function_tool(stubborn)])
    async with open_scripted_session(agent, Stalled(strict=False)) as (session, model, recorded):
        if holds_up == "tool":
            await model.emit(response_started(), tool_call("stubborn"))
            await recorded.wait_for("tool_start")
        patient = asyncio.ensure_future(session.close(60))
        await asyncio.sleep(1)
        began = now()
        report = await session.close(0.2)
        assert now() - began < 0.3
        assert report == await patient
        expected = {"model": (("model",), ()), "tool": ((), ("call stubborn (c1)",))}[holds_up]
        assert (report.cancelled, report.still_running) == expected
        released.set()
        await asyncio.sleep(1)


async def test_a_tool_that_does_not_stop_is_reported_and_the_history_is_still_written():
    release = asyncio.Event()

    @function_tool
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return ""

    async with open_scripted_session(RealtimeAgent(name="a", tools=[stubborn])) as (session, model, recorded):
        await model.emit(tool_call("stubborn"))
        await recorded.wait_for("tool_start")
        report = await session.close(deadline=0.2)
        assert report.still_running == ("call stubborn (c1)",)
        release.set()
        await asyncio.sleep(0.01)


async def test_cleanup_of_tools_and_guardrails_has_finished_when_the_session_is_closed():
    over = []

    async def hang(name):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.02)
            over.append(name)

    @function_tool
    async def slow() -> str:
        await hang("tool")
        return ""

    @output_guardrail
    async def slower(context, agent, output):
        await hang("guardrail")
        return GuardrailFunctionOutput(None, False)

    agent = RealtimeAgent(name="a", tools=[slow], output_guardrails=[slower])
    async with open_scripted_session(agent) as (session, model, recorded):
        await model.emit(response_started(), text_delta("x" * 120), tool_call("slow"))
        await recorded.wait_for("tool_start")
        report = await session.close()
        assert (sorted(over), report.cancelled, report.still_running) == (["guardrail", "tool"], (), ())
        assert recorded.of_type("tool_end") == []


async def test_a_tool_in_a_thread_is_reported_when_it_outlives_the_session():
    release, running = threading.Event(), threading.Event()

    @function_tool
    def blocking() -> str:
        running.set()
        release.wait(5)
        return ""

    async with open_scripted_session(RealtimeAgent(name="a", tools=[blocking])) as (session, model, _recorded):
        await model.emit(tool_call("blocking"))
        await wait_until(running.is_set)
        report = await session.close()
        assert report.still_running == ("thread of blocking (c1)",)
        release.set()
        await asyncio.to_thread(lambda: None)


async def test_a_tool_may_close_the_session():
    @function_tool
    async def hang_up() -> str:
        await session.close()
        return "bye"

    async with open_scripted_session(RealtimeAgent(name="a", tools=[hang_up])) as (session, model, recorded):
        await model.emit(tool_call("hang_up"))
        await recorded.wait_for("session_closed")
    assert not model.connected


async def test_a_guardrail_may_close_the_session():
    @output_guardrail
    async def hang_up(context, agent, output):
        await session.close()
        return GuardrailFunctionOutput(None, False)

    async with open_scripted_session(RealtimeAgent(name="a", output_guardrails=[hang_up])) as (
        session,
        model,
        recorded,
    ):
        await model.emit(response_started(), text_delta("x" * 120))
        await recorded.wait_for("session_closed")


async def test_a_listener_of_the_model_may_close_the_session():
    class Other(RealtimeModelListener):
        async def on_event(self, event):
            if event.type == "turn_ended":
                await session.close()

    async with open_scripted_session(AGENT) as (session, model, recorded):
        model.add_listener(Other())
        await model.emit(response_started(), response_ended())
        await recorded.wait_for("session_closed")


async def test_an_iterator_may_close_the_session_it_iterates():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    seen = []
    async with session:
        await model.emit(response_started(), response_ended())
        async for event in session.events():
            seen.append(event.type)
            if event.type == "agent_end":
                await session.close()
    assert seen[-1] == "session_closed"


async def test_two_iterators_each_see_everything_and_the_first_from_the_beginning():
    async with open_scripted_session(AGENT) as (session, model, recorded), record_events(session) as second:
        await model.emit(response_started(), audio_chunk(), response_ended())
        await recorded.wait_for("agent_end")
        await second.wait_for("agent_end")
        assert recorded.types()[0] == "history_updated"
        assert second.types() == ["agent_start", "audio", "agent_end"]
        assert recorded.types()[1:] == second.types()


async def test_events_before_the_first_iterator_are_kept_for_it():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    async with session:
        await model.emit(response_started(), response_ended())
        async with record_events(session) as recorded:
            await recorded.wait_for("agent_end")
            assert recorded.types() == ["history_updated", "agent_start", "agent_end"]


async def test_an_iteration_continues_where_the_previous_one_was_left():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    async with session:
        await model.emit(response_started(), response_ended())
        async for event in session.events():
            if event.type == "agent_start":
                break
        seen = [event.type async for event in until_end(session)]
    assert seen == ["raw_model_event", "agent_end"]


async def until_end(session):
    async for event in session.events():
        yield event
        if event.type == "agent_end":
            return


async def test_ten_thousand_deltas_without_a_reader_stay_within_the_bound():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    async with session:
        await model.emit(response_started())
        for _ in range(10_000):
            await model.emit(audio_chunk(1))
        assert session._ctx.broadcast.unread_count < 2_100
        assert session.metrics.count_dropped_events() > 17_000
        seen = [event async for event in until_dropped(session)]
    assert seen[-1].count > 17_000


async def until_dropped(session):
    async for event in session.events():
        yield event
        if event.type == "events_dropped":
            return


@in_virtual_time
async def test_unread_events_stay_within_the_bound():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    async with session:
        async for _ in session.events():
            break
        for number in range(7_000):
            await model.emit(response_started(f"r{number}"), response_ended(f"r{number}"))
        assert session._ctx.broadcast.unread_count < 12_100
        seen = [event async for event in until_end(session)]
    assert seen[0].type == "events_dropped"


async def test_control_events_are_never_dropped_however_slow_the_reader():
    async with open_scripted_session(AGENT) as (session, _model, recorded):
        for number in range(3_000):
            await session.on_event(response_started(f"r{number}"))
            await session.on_event(response_ended(f"r{number}"))
        await recorded.wait_for("agent_end", 3_000)
        assert len(recorded.of_type("agent_start")) == 3_000


async def test_a_fatal_error_reaches_every_iterator_after_its_unread_events():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()
    async with session:
        first, second = session.events(), session.events()
        await model.emit(response_started(), audio_chunk(), RealtimeModelExceptionEvent(RuntimeError("gone")))
        for iterator in (first, second):
            seen, error = await drained(iterator)
            assert str(error) == "gone"
            assert "audio" in seen
            assert seen[-1] == "session_closed"


async def drained(iterator):
    seen = []
    try:
        while True:
            seen.append((await anext(iterator)).type)
    except RuntimeError as error:
        return seen, error


async def test_a_fatal_error_without_an_iterator_is_raised_at_the_exit():
    model = scripted()
    session = await RealtimeRunner(AGENT, model=model).run()

    async def unread():
        async with session:
            await model.emit(RealtimeModelExceptionEvent(RuntimeError("gone")))
            await wait_until(lambda: session.state is RealtimeState.CLOSED)

    with pytest.raises(RuntimeError, match="gone"):
        await unread()


async def test_an_error_in_the_body_is_not_hidden_by_a_failing_close():
    model = scripted(close_error=RuntimeError("stuck"))
    session = await RealtimeRunner(AGENT, model=model).run()
    with pytest.raises(KeyError):
        async with session:
            raise KeyError


async def test_the_end_of_the_stream_ends_the_session_quietly():
    async with open_scripted_session(AGENT) as (_session, model, recorded):
        await model.emit(RealtimeModelEndOfStreamEvent())
        assert (await recorded.wait_for("session_closed")).report.reason == "ended"


async def test_a_closed_session_accepts_no_input():
    async with open_scripted_session(AGENT) as (session, _model, _recorded):
        await session.close()
        for saying in (session.send_message("hi"), session.send_audio(b""), session.interrupt()):
            with pytest.raises(Closed):
                await saying


async def test_a_session_accepts_no_input_before_the_entry():
    session = await RealtimeRunner(AGENT, model=scripted()).run()
    for saying in (
        session.send_message("hi"),
        session.send_audio(b""),
        session.interrupt(),
        session.update_agent(AGENT),
    ):
        with pytest.raises(NotConnected, match="async with"):
            await saying
    assert not await session.approve_tool_call("c1")
    await session.close()


async def test_every_session_of_a_runner_has_its_own_model():
    runner = RealtimeRunner(AGENT)
    first, second = await runner.run(), await runner.run()
    assert isinstance(first.model, OpenAIRealtimeWebSocketModel)
    assert first.model is not second.model


async def test_a_session_can_be_made_by_hand():
    model = scripted()
    async with RealtimeSession(model, AGENT, {"user": 7}) as session:
        assert session.current_agent is AGENT
        assert session.context.context == {"user": 7}


async def test_the_loop_may_end_while_a_session_is_open():
    model = scripted()

    async def forgetful():
        await (await RealtimeRunner(AGENT, model=model).run()).enter()
        await asyncio.sleep(0)

    await asyncio.to_thread(asyncio.run, forgetful())
    assert (model.connected, model.listeners) == (False, ())


def test_a_session_of_another_loop_is_not_closed_by_accident():
    model = scripted()
    with asyncio.Runner() as runner:
        session = runner.run(RealtimeRunner(AGENT, model=model).run())
        runner.run(session.enter())
        with pytest.raises(UserError, match="event loop"):
            elsewhere(session.close())
        assert (session.state, model.connected) == (RealtimeState.OPEN, True)
    assert (session.state, model.connected) == (RealtimeState.CLOSED, False)
    assert elsewhere(session.close()).reason == "asked"


def elsewhere(work):
    """Run it in a loop of another thread."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


class Slow(ScriptedRealtimeModel):
    """Takes a moment for everything, so that there is much to cancel."""

    async def connect(self, options):
        await asyncio.sleep(0)
        await super().connect(options)
        await asyncio.sleep(0)

    async def send_event(self, event):
        await asyncio.sleep(0)
        await super().send_event(event)

    async def close(self):
        await asyncio.sleep(0)
        await super().close()


async def test_a_session_cancelled_anywhere_leaves_nothing_behind():
    models = []

    async def instructions(context, agent):
        await asyncio.sleep(0)
        return "Be kind."

    async def scenario():
        models.append(Slow(strict=False))
        agent = RealtimeAgent(name="a", instructions=instructions)
        async with open_store("memory://") as store:
            history = store.session("s")
            await history.add_items([{"role": "user", "content": "before"}])
            async with await RealtimeRunner(agent, model=models[-1]).run(session=history) as session:
                await session.send_message("hello")
                await session.update_agent(AGENT)

    def check():
        assert (models[-1].connected, models[-1].listeners) == (False, ())

    assert await cancel_at_every_await(scenario, check=check) >= 4


@pytest.mark.parametrize("steps", range(1, 16))
async def test_an_entry_cancelled_after_any_number_of_steps_releases_everything(steps):
    async def instructions(context, agent):
        await asyncio.sleep(0)
        return "Be kind."

    async with open_store("memory://") as store:
        history = store.session("s")
        await history.add_items([{"role": "user", "content": "before"}])
        model = Slow(strict=False)
        session = await RealtimeRunner(RealtimeAgent(name="a", instructions=instructions), model=model).run(
            session=history
        )
        entering = asyncio.ensure_future(session.enter())
        for _ in range(steps):
            await asyncio.sleep(0)
        entering.cancel()
        await asyncio.wait({entering})
        if not entering.cancelled():
            await session.close()
        assert (model.connected, model.listeners, session.state) == (False, (), RealtimeState.CLOSED)


async def test_one_iterator_cannot_be_waited_for_twice():
    async with open_scripted_session(AGENT) as (session, _model, _recorded):
        iterator = session.events()
        waiting = asyncio.ensure_future(anext(iterator))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="already"):
            await anext(iterator)
        waiting.cancel()
        await asyncio.wait({waiting})


async def test_the_listener_is_removed_only_once():
    class Model(RealtimeModel):
        def __init__(self):
            self.listeners = []

        async def connect(self, options):
            pass

        def add_listener(self, listener):
            self.listeners.append(listener)

        def remove_listener(self, listener):
            self.listeners.remove(listener)  # Raises if it is not there.

        async def send_event(self, event):
            pass

        async def close(self):
            pass

    model = Model()
    async with asyncio.timeout(WAIT_TIMEOUT):
        session = await RealtimeRunner(AGENT, model=model).run()
        async with session:
            pass
    assert model.listeners == []


@in_virtual_time
async def test_an_answer_that_the_end_of_a_call_cuts_short_is_incomplete():
    async with open_scripted_session(AGENT) as (session, model, _):
        await model.emit(response_started(), text_delta("As I was"))
        assert session.history[-1].status == "in_progress"
    assert session.history[-1].status == "incomplete"


@in_virtual_time
async def test_the_report_has_messages_lost_with_a_connection():
    async with open_scripted_session(AGENT) as (session, model, recorded):
        await session.send_message("Are you there?")
        await model.emit(RealtimeModelConnectionStatusEvent("disconnected"))
        await recorded.wait_for("reconnecting")
        report = await session.close()
    assert report.undelivered_messages == ("Are you there?",)


@in_virtual_time
async def test_the_follow_up_of_a_guardrail_is_not_reported_as_a_lost_message():
    @output_guardrail
    async def discretion(context, agent, output):
        return GuardrailFunctionOutput(None, "secret" in output)

    agent = RealtimeAgent(name="host", output_guardrails=[discretion])
    async with open_scripted_session(agent) as (session, model, recorded):
        await model.emit(response_started(), text_delta("It is a secret."), response_ended())
        await wait_until(lambda: get_sent_inputs(model, RealtimeModelSendUserInput))
        await model.emit(RealtimeModelConnectionStatusEvent("disconnected"))
        await recorded.wait_for("reconnecting")
        report = await session.close()
    assert report.undelivered_messages == ()
