"""One owner of all resources of a session, whichever task or thread uses it."""

import asyncio
import gc
import math
import tracemalloc
from weakref import WeakSet

import pytest

from factories.realtime import (
    WAIT_TIMEOUT,
    audio_chunk,
    get_texts,
    in_virtual_time,
    open_scripted_session,
    open_websocket_session,
    response_ended,
    response_started,
    text_delta,
    tool_call,
    user_message_added,
    wait_until,
)
from standfast import UserError, function_tool, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeModelListener, RealtimeRunner, RealtimeState
from standfast.realtime.local import CallTool
from standfast.realtime.model_events import RealtimeModelItemDeletedEvent
from standfast.realtime.testing import ScriptedRealtimeModel
from standfast.testing import RealtimeServer

AGENT = RealtimeAgent(name="host", instructions="I am the host.")


@pytest.mark.parametrize("deadline", [None, "2", math.nan])
async def test_a_deadline_that_is_not_a_number_is_refused_and_the_session_continues(deadline):
    async with RealtimeServer(["Hello."]) as server, open_websocket_session(server, AGENT) as (session, recorded):
        with pytest.raises(UserError, match="number of seconds"):
            await session.close(deadline)
        assert session.state is RealtimeState.OPEN
        await session.send_message("hi")
        await recorded.wait_for("agent_end")
    assert session.state is RealtimeState.CLOSED


async def test_an_unlimited_deadline_is_one():
    async with RealtimeServer() as server, open_websocket_session(server, AGENT) as (session, _):
        report = await session.close(math.inf)
        assert (report.reason, session.state) == ("asked", RealtimeState.CLOSED)


async def listen_to_the_end(session):
    async for _ in session.events():
        pass


USES = {
    "send_message": lambda session: session.send_message("from a thread"),
    "send_audio": lambda session: session.send_audio(bytes(480)),
    "interrupt": lambda session: session.interrupt(),
    "update_agent": lambda session: session.update_agent(AGENT),
    "approve_tool_call": lambda session: session.approve_tool_call("c1"),
    "reject_tool_call": lambda session: session.reject_tool_call("c1"),
    "async for": listen_to_the_end,
    "close": lambda session: session.close(),
}


@pytest.mark.parametrize("use", USES)
async def test_a_tool_in_a_thread_that_uses_the_session_in_its_own_loop_gets_a_helpful_error(use):
    refused = []

    @function_tool
    def plain() -> str:
        try:
            asyncio.run(asyncio.wait_for(USES[use](session), WAIT_TIMEOUT))
        except Exception as error:
            refused.append(error)
        return "done"

    agent = RealtimeAgent(name="a", tools=[plain])
    script = [CallTool("plain"), "It is done."]
    async with RealtimeServer(script) as server, open_websocket_session(server, agent) as (session, recorded):
        await session.send_message("do it")
        await recorded.wait_for("agent_end", 2)
        assert isinstance(refused[0], UserError), refused
        assert "run_coroutine_threadsafe" in str(refused[0])
        assert get_texts(session)[-1] == "It is done."
        report = await session.close()
        assert (report.cancelled, report.still_running, report.unsent_outputs) == ((), (), ())
        await wait_until(lambda: not server.open_connections)


async def test_a_tool_in_a_thread_may_use_the_session_in_its_own_loop():
    loop, given = asyncio.get_running_loop(), []

    @function_tool
    def plain() -> str:
        given.append(asyncio.run_coroutine_threadsafe(session.close(), loop).result(10))
        return "done"

    agent = RealtimeAgent(name="a", tools=[plain])
    async with (
        RealtimeServer([CallTool("plain")]) as server,
        open_websocket_session(server, agent) as (session, recorded),
    ):
        await session.send_message("do it")
        await recorded.wait_for("session_closed")
        assert await wait_until(lambda: given) == [None], "from inside it only asks"


async def test_a_listener_that_awaits_a_cancelled_task_does_not_stop_the_session():
    class Listener(RealtimeModelListener):
        async def on_event(self, event):
            if event.type == "turn_started":
                gone = asyncio.ensure_future(asyncio.Event().wait())
                gone.cancel()
                await gone

    async with (
        RealtimeServer(["Hello.", "Goodbye."]) as server,
        open_websocket_session(server, AGENT) as (session, recorded),
    ):
        session.model.add_listener(Listener())
        await session.send_message("hi")
        await recorded.wait_for("agent_end")
        await session.send_message("bye")
        await recorded.wait_for("agent_end", 2)
        assert get_texts(session) == ["hi", "Hello.", "bye", "Goodbye."]


async def test_tasks_that_still_run_emit_no_event_after_the_end(caplog):
    go_on, tasks = asyncio.Event(), []

    @output_guardrail
    async def stubborn(context, agent, text):
        tasks.append(asyncio.current_task())
        while not go_on.is_set():
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                continue
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    agent = RealtimeAgent(name="a", output_guardrails=[stubborn])
    async with RealtimeServer(["Hello."]) as server, open_websocket_session(server, agent) as (session, recorded):
        await session.send_message("hi")
        await recorded.wait_for("agent_end")
        await wait_until(lambda: tasks)
        late = session.events()
        report = await session.close(deadline=0.1)
        assert len(report.still_running) == len(tasks)
        go_on.set()
        await asyncio.wait(tasks)
        assert [event.type async for event in late][-1] == "session_closed"
        assert [event.type async for event in session.events()] == []
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


async def test_the_socket_of_a_hanging_peer_is_closed_at_a_short_deadline(server_elsewhere):
    async with open_websocket_session(server_elsewhere, AGENT) as (session, _):
        server_elsewhere.connections[0].stall()
        report = await session.close(deadline=0.1)
        assert report.cancelled == ("model",)
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("realtime")] == []


async def test_a_pending_approval_does_not_keep_all_later_calls_in_memory(monkeypatch):
    monkeypatch.setattr("standfast.realtime._session.tool_calls.MAX_REMEMBERED_CALLS", 100)

    class Output:
        pass

    outputs: WeakSet[Output] = WeakSet()

    @function_tool(needs_approval=True)
    async def ask() -> str:
        return "asked"

    @function_tool
    async def quick() -> Output:
        outputs.add(output := Output())
        return output

    model = ScriptedRealtimeModel(strict=False)
    session = await RealtimeRunner(RealtimeAgent(name="a", tools=[ask, quick]), model=model).run()
    async with session:
        events = session.events()
        await model.emit(tool_call("ask", "c0"))
        for number in range(1, 151):
            await model.emit(tool_call("quick", f"c{number}"))
            while (await anext(events)).type != "tool_end":
                pass
            await model.emit(RealtimeModelItemDeletedEvent(f"c{number}"))
        gc.collect()
        assert len(outputs) <= 110
        assert await session.approve_tool_call("c0"), "it still waits"


async def test_a_long_session_whose_items_are_deleted_uses_no_more_memory():
    model = ScriptedRealtimeModel(strict=False)
    session = await RealtimeRunner(AGENT, model=model).run()

    async def turns(first, last):
        for number in range(first, last):
            of = {"item_id": f"item-{number}", "response_id": f"response-{number}"}
            answer = [
                response_started(of["response_id"]),
                audio_chunk(1, **of),
                text_delta("Hello.", **of),
                response_ended(of["response_id"]),
            ]
            await model.emit(*answer, RealtimeModelItemDeletedEvent(of["item_id"]))
            while (await anext(events)).type != "agent_end":
                pass
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with session:
        events = session.events()
        tracemalloc.start()
        try:
            before = await turns(0, 600)
            after = await turns(600, 1600)
        finally:
            tracemalloc.stop()
    assert after - before < 30_000, "30 bytes for each turn would be too much"


class SlowHistory:
    """A history session without keys, whose appends end when they are released."""

    session_id, session_settings = "slow", None

    def __init__(self):
        self.items, self.begun, self.let_go = [], 0, asyncio.Event()

    async def get_items(self, limit=None):
        return []

    async def add_items(self, items):
        self.begun += 1
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue
        self.items += items


@in_virtual_time
async def test_an_append_in_progress_is_awaited_and_not_repeated():
    history = SlowHistory()
    async with open_scripted_session(AGENT, session=history) as (session, model, _):
        await model.emit(user_message_added("hello"))
        asyncio.get_running_loop().call_later(0.8, history.let_go.set)
        report = await session.close(deadline=1.0)
    assert [item["content"] for item in history.items] == ["hello"]
    assert (report.cancelled, report.still_running, report.unwritten_count) == ((), (), 0)


@in_virtual_time
async def test_a_history_that_cannot_be_interrupted_delays_neither_the_end_nor_the_connection():
    history, loop = SlowHistory(), asyncio.get_running_loop()
    async with open_scripted_session(AGENT, session=history) as (session, model, _):
        await model.emit(user_message_added("hello"))
        before = loop.time()
        report = await session.close(deadline=1.0)
        assert loop.time() - before < 1.5
        assert (session.state, model.connected) == (RealtimeState.CLOSED, False)
        assert (report.cancelled, report.still_running, report.unwritten_count) == (("history",), ("history",), 1)
        assert history.begun == 1
        history.let_go.set()
        await wait_until(lambda: history.items)


@in_virtual_time
async def test_a_model_that_cannot_be_interrupted_does_not_delay_the_end():
    let_go, loop = asyncio.Event(), asyncio.get_running_loop()

    class Stubborn(ScriptedRealtimeModel):
        async def close(self):
            while not let_go.is_set():
                try:
                    await let_go.wait()
                except asyncio.CancelledError:
                    continue
            await super().close()

    async with open_scripted_session(AGENT, Stubborn(strict=False)) as (session, model, _):
        before = loop.time()
        report = await session.close(deadline=1.0)
        assert loop.time() - before <= 1.5
        assert (session.state, report.still_running) == (RealtimeState.CLOSED, ("realtime session",))
        let_go.set()
        await wait_until(lambda: not model.connected)
