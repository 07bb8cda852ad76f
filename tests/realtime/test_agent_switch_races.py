"""Agent switches that race with other switches, with the connection and with the close."""

import asyncio

import pytest

from factories.fragile_realtime_model import FragileModel
from factories.realtime import get_sent_inputs, in_virtual_time, open_scripted_session, record_events, response_started
from standfast import Closed, UserError, function_tool
from standfast.realtime import (
    LocalRealtimeModel,
    RealtimeAgent,
    RealtimeModelListener,
    RealtimeModelSendSessionUpdate,
    RealtimeRunner,
)
from standfast.realtime.errors import AcknowledgementTimeout
from standfast.realtime.local import CallTool, EnergyDetector, ToneTTS
from standfast.realtime.testing import RealtimeStep, ScriptedRealtimeModel

Update = RealtimeModelSendSessionUpdate

B = RealtimeAgent(name="b", instructions="I am b.")
C = RealtimeAgent(name="c", instructions="I am c.")
A = RealtimeAgent(name="a", instructions="I am a.")


def list_sent_instructions(model):
    return [event.session_settings["instructions"] for event in get_sent_inputs(model, Update)]


def make_agent_that_calls(how, do):
    """An agent of which one part is a function that calls ``do``."""

    async def instructions(context, agent):
        await do()
        return "changed"

    async def is_enabled(context, agent):
        await do()
        return True

    if how == "instructions":
        return RealtimeAgent(name="x", instructions=instructions)
    tool = function_tool(lambda: "x", name_override="t", is_enabled=is_enabled, strict_mode=False)
    return RealtimeAgent(name="x", tools=[tool])


@pytest.mark.parametrize("how", ["instructions", "is_enabled"])
def test_a_change_inside_a_change_is_refused(how):
    @in_virtual_time
    async def scenario():
        async with open_scripted_session(A) as (session, model, _recorded):
            with pytest.raises(UserError, match="it would wait for itself"):
                await session.update_agent(make_agent_that_calls(how, lambda: session.update_agent(B)))
            assert (session.current_agent, list_sent_instructions(model)) == (A, [])
            await session.update_agent(B)
            assert session.current_agent is B

    scenario()


@pytest.mark.parametrize("what", ["update_agent", "send_message", "interrupt"])
def test_entering_a_session_does_not_wait_for_itself(what):
    @in_virtual_time
    async def scenario():
        arguments = {"update_agent": [B], "send_message": ["hello"], "interrupt": []}[what]
        agent = make_agent_that_calls("instructions", lambda: getattr(session, what)(*arguments))
        session = await RealtimeRunner(agent, model=ScriptedRealtimeModel(strict=False)).run()
        with pytest.raises(UserError, match="it would wait for itself"):
            await session.enter()
        assert session.state == "closed"

    scenario()


@in_virtual_time
async def test_a_task_that_instructions_have_started_may_change_the_agent_later():
    later, tasks = asyncio.Event(), []

    async def change():
        await later.wait()
        await session.update_agent(B)

    async def start():
        tasks.append(asyncio.ensure_future(change()))

    async with open_scripted_session(A) as (session, _model, _recorded):
        await session.update_agent(make_agent_that_calls("instructions", start))
        later.set()
        await tasks[0]
        assert session.current_agent is B


@in_virtual_time
async def test_the_instructions_for_one_session_may_change_the_agent_of_another():
    async with open_scripted_session(A) as (one, _model, _), open_scripted_session(A) as (other, _also, _too):
        await one.update_agent(make_agent_that_calls("instructions", lambda: other.update_agent(B)))
        assert (one.current_agent.name, other.current_agent) == ("x", B)


@in_virtual_time
async def test_pending_switches_end_with_the_session():
    stuck = asyncio.Event()
    async with open_scripted_session(A) as (session, _model, _recorded):
        asked = [asyncio.ensure_future(session.update_agent(make_agent_that_calls("instructions", stuck.wait)))]
        asked += [asyncio.ensure_future(session.update_agent(B)) for _ in range(2)]
        await asyncio.sleep(1)
        report = await session.close()
        ends = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(end) for end in ends] == [Closed, Closed, Closed]
    assert (session.current_agent, report.cancelled, report.still_running) == (A, (), ())


@pytest.mark.parametrize("error", [RuntimeError("odd"), ConnectionError("odd"), TimeoutError("odd")])
def test_the_old_settings_are_restored_after_any_error_of_a_switch(error):
    @in_virtual_time
    async def scenario():
        class Slow(ScriptedRealtimeModel):
            async def send_event(self, event):
                await asyncio.sleep(1)
                await super().send_event(event)

        model = Slow([RealtimeStep(Update, error=error)], strict=False)
        async with open_scripted_session(A, model) as (session, _, _recorded):
            with pytest.raises(type(error), match="odd"):
                await session.update_agent(B)
            assert (session.current_agent, list_sent_instructions(model)) == (A, ["I am b.", "I am a."])

    scenario()


@pytest.mark.parametrize("how", ["hangs", "fails"])
def test_a_model_that_refuses_the_old_settings_does_not_block_the_next_change(how):
    @in_virtual_time
    async def scenario():
        class Stuck(ScriptedRealtimeModel):
            async def send_event(self, event):
                await super().send_event(event)
                if isinstance(event, Update) and event.session_settings["instructions"] == "I am a.":
                    await (asyncio.Event().wait() if how == "hangs" else self.close())

        model = Stuck([RealtimeStep(Update, error=AcknowledgementTimeout("the settings", 1))], strict=False)
        async with open_scripted_session(A, model) as (session, _, recorded):
            with pytest.raises(AcknowledgementTimeout):
                await session.update_agent(B)
            if how == "fails":
                await model.drop()
                await recorded.wait_for("reconnected")
            await session.update_agent(C)
            assert session.current_agent is C

    scenario()


@in_virtual_time
async def test_a_connection_lost_during_a_switch_is_replaced_and_gets_the_new_settings():
    class Fragile(ScriptedRealtimeModel):
        fell = False

        async def send_event(self, event):
            if isinstance(event, Update) and not self.fell:
                self.fell = True
                await self.drop()
            await super().send_event(event)

    async with open_scripted_session(A, Fragile(strict=False)) as (session, model, recorded):
        await session.update_agent(B)
        assert (session.current_agent, list_sent_instructions(model)) == (B, ["I am b."])
        assert [connect["initial_model_settings"]["instructions"] for connect in model.connect_calls] == ["I am a."] * 2
        assert len(recorded.of_type("agent_changed")) == 1


class Once(RealtimeModelListener):
    """Does something at the first event of a kind, and knows how long that took."""

    def __init__(self, kind, do):
        self._kind, self._do, self.took = kind, do, None

    async def on_event(self, event):
        if event.type == self._kind and self._do is not None:
            do, self._do = self._do, None
            since = asyncio.get_running_loop().time()
            await do()
            self.took = asyncio.get_running_loop().time() - since


def local(*turns):
    return LocalRealtimeModel(turns, tts=ToneTTS(), detector=EnergyDetector)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("what", ["interrupt", "update_agent"])
def test_a_listener_of_the_model_does_not_wait_for_its_own_events(what, when):
    @in_virtual_time
    async def scenario():
        model = local("One two three four five six seven eight nine ten.")
        session = await RealtimeRunner(A, model=model).run()
        do = {"interrupt": lambda: session.interrupt(), "update_agent": lambda: session.update_agent(B)}[what]
        listener = Once("audio", do)
        if when == "before":
            model.add_listener(listener)
        async with record_events(session) as recorded, session:
            model.add_listener(listener)
            await session.send_message("Count to ten.")
            status = (await recorded.wait_for("agent_end")).status
            assert listener.took < 0.1
            assert status == ("cancelled" if what == "interrupt" else "completed")
            assert recorded.of_type("error") == []
            if what == "update_agent":
                assert session.current_agent is B
                assert model.engine.settings.instructions == "I am b."

    scenario()


@in_virtual_time
async def test_a_failed_switch_of_a_listener_is_an_error_event():
    def broken(context, agent):
        raise ValueError("no instructions")

    async with open_scripted_session(A) as (session, model, recorded):
        wrong = RealtimeAgent(name="x", instructions=broken)
        model.add_listener(Once("turn_started", lambda: session.update_agent(wrong)))
        await model.emit(response_started())
        assert str((await recorded.wait_for("error")).error) == "no instructions"
        assert session.current_agent is A


@in_virtual_time
async def test_a_task_that_a_listener_has_started_waits_for_the_end_of_the_response():
    model, tasks, order = local("One two three four five six seven eight nine ten."), [], []

    async def interrupt():
        await session.interrupt()
        order.append("interrupted")

    async def start():
        tasks.append(asyncio.ensure_future(interrupt()))
        await asyncio.sleep(0.3)
        order.append("announced")

    session = await RealtimeRunner(A, model=model).run()
    model.add_listener(Once("audio", start))
    async with record_events(session) as recorded, session:
        await session.send_message("Count to ten.")
        assert (await recorded.wait_for("agent_end")).status == "cancelled"
        await tasks[0]
    assert order == ["announced", "interrupted"]


@pytest.mark.parametrize("trouble", ["cancel the first", "cancel the second", "break", "break and cancel", "close"])
@pytest.mark.parametrize("apart", [0, 2, 7])
def test_the_model_has_the_settings_of_the_current_agent_after_any_race(trouble, apart):
    async def scenario(after):
        model = FragileModel(["x"], tts=ToneTTS(), detector=EnergyDetector)
        session = await RealtimeRunner(A, model=model, config={"reconnect": {"initial_delay": 0.1}}).run()
        async with session:
            first = asyncio.ensure_future(session.update_agent(B))
            await steps(apart)
            second = asyncio.ensure_future(session.update_agent(C))
            await steps(after)
            if "break" in trouble:
                model.link.snap()
            if "cancel" in trouble:
                (second if "second" in trouble else first).cancel()
            if trouble == "close":
                await session.close()
            ends = await asyncio.gather(first, second, return_exceptions=True)
            if trouble == "close":
                assert {type(end) for end in ends} <= {type(None), Closed}
                return
            assert trouble != "break" or ends == [None, None]
            assert model.engine.settings.instructions == session.current_agent.instructions
            await session.update_agent(A)
            assert model.engine.settings.instructions == "I am a."

    for after in range(apart % 2, 20, 2):
        in_virtual_time(lambda after=after: scenario(after))()


async def steps(count):
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("connects", [True, False])
def test_a_change_requested_while_the_session_opens_waits_until_it_is_open(connects):
    @in_virtual_time
    async def scenario():
        may = asyncio.Event()

        class Slow(ScriptedRealtimeModel):
            async def connect(self, options):
                await may.wait()
                await super().connect(options)

        model = Slow(strict=False, connect_error=None if connects else ConnectionError("no line"))
        session = await RealtimeRunner(A, model=model).run()
        entering = asyncio.ensure_future(session.enter())
        await asyncio.sleep(1)
        changing = asyncio.ensure_future(session.update_agent(B))
        await asyncio.sleep(1)
        may.set()
        ends = await asyncio.gather(entering, changing, return_exceptions=True)
        assert [type(end) for end in ends] == ([type(session), type(None)] if connects else [ConnectionError, Closed])
        assert session.current_agent is (B if connects else A)
        await session.close()

    scenario()


@in_virtual_time
async def test_a_change_that_a_call_waits_for_is_not_blocked_by_the_next_call():
    @function_tool
    async def change() -> str:
        await session.update_agent(B)
        return "changed"

    @function_tool
    async def look() -> str:
        return "seen"

    agent = RealtimeAgent(name="a", tools=[change, look])
    turns = [[CallTool("change"), CallTool("look")], "Fine."]
    model = LocalRealtimeModel(turns, tts=ToneTTS(), detector=EnergyDetector)
    async with open_scripted_session(agent, model, async_tool_calls=False) as (session, _model, recorded):
        await session.send_message("Go on.")
        await recorded.wait_for("tool_end", 2)
        assert [event.output for event in recorded.of_type("tool_end")] == ["changed", "seen"]
        assert session.current_agent is B
