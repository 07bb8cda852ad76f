"""Random sessions in virtual time: in the end, the session and the server agree.

In each schedule a user writes, speaks and interrupts, the program switches agents and decides approvals, tools are
slow, guardrails trip, and connections are lost, at random moments that depend on a seed.
"""

import asyncio
import random

import pytest

from factories.fragile_realtime_model import FragileModel
from factories.realtime import record_events
from factories.realtime_protocol import make_speech
from standfast import ToolContext, function_tool, output_guardrail
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.realtime import RealtimeAgent, RealtimeRunner, RealtimeState
from standfast.realtime._session.item_conversion import get_text
from standfast.realtime.items import RealtimeToolCallItem
from standfast.realtime.local import CallTool, EnergyDetector, Say, ToneTTS
from standfast.testing.virtual_time import run_in_virtual_time

SPEECH = asyncio.run(make_speech("Somebody says something.", pause_ms=600))


class Brain:
    """Responds with random text and calls, after a random delay."""

    def __init__(self, rng):
        self._rng = rng

    async def respond(self, request):
        rng = self._rng
        await asyncio.sleep(rng.choice([0, 0, 0.05, 0.4]))
        names = [tool["name"] for tool in request.tools]
        for _ in range(rng.randint(1, 2)):
            kind = rng.random()
            if kind < 0.6 or not names:
                yield Say(" ".join(rng.choices(["one", "two", "three", "secret"], [6, 6, 6, 1], k=rng.randint(1, 12))))
            else:
                yield CallTool(rng.choice([*names, "unknown"]), {})


class Schedule:
    def __init__(self, seed):
        self.rng = rng = random.Random(seed)
        self.held, self.answers = seed % 3 == 0, seed % 4 != 1
        self.trips, self.made, self.asked = {}, [], set()

        async def wait():
            await asyncio.sleep(rng.choice([0, 0.01, 0.3, 1.5]))
            if rng.random() < 0.15:
                raise ValueError("the tool failed")
            return "ok"

        @function_tool
        async def keep(context: ToolContext) -> str:
            self.made.append(context.tool_call_id)
            return await wait()

        @function_tool(on_barge_in="cancel")
        async def cancel(context: ToolContext) -> str:
            self.made.append(context.tool_call_id)
            return await wait()

        @function_tool(on_barge_in="finish_silently")
        async def silently(context: ToolContext) -> str:
            self.made.append(context.tool_call_id)
            return await wait()

        @function_tool(needs_approval=True)
        async def asking(context: ToolContext) -> str:
            self.made.append(context.tool_call_id)
            return await wait()

        @output_guardrail
        async def discreet(context, agent, output):
            await asyncio.sleep(rng.choice([0, 0.02, 0.3]))
            return GuardrailFunctionOutput(None, "secret" in output)

        tools = [keep, cancel, silently, asking]
        self.a = RealtimeAgent(name="a", tools=tools, output_guardrails=[discreet])
        self.b = RealtimeAgent(name="b", tools=tools[:2], output_guardrails=[discreet], handoffs=[self.a])
        self.a.handoffs.append(self.b)
        self.model = FragileModel(Brain(rng), tts=ToneTTS(), detector=EnergyDetector, pace=rng.choice([1.0, None]))

    async def run(self):
        config = {
            "guardrails_settings": {"debounce_text_length": 8, "hold_back_audio": self.held},
            "model_settings": {"turn_detection": {"type": "server_vad", "create_response": self.answers}},
            "reconnect": {"initial_delay": 0.1},
        }
        session = await RealtimeRunner(self.a, model=self.model, config=config).run()
        async with record_events(session) as recorded, session:
            async with asyncio.TaskGroup() as several:
                for _ in range(self.rng.randint(3, 12)):
                    await asyncio.sleep(self.rng.choice([0, 0, 0.02, 0.3, 1.0]))
                    acting = several.create_task(self.act(session, recorded))
                    if self.rng.random() < 0.6:
                        await asyncio.wait({acting})
            await self.settle(session, recorded)
            self.check(session, recorded)
            report = await session.close()
            assert (report.cancelled, report.still_running, report.unsent_outputs) == ((), (), ())

    async def act(self, session, recorded):
        rng = self.rng
        match rng.choices(["write", "speak", "interrupt", "change", "decide", "snap"], [4, 3, 2, 2, 3, 2])[0]:
            case "write":
                await session.send_message("hello")
            case "speak":
                for start in range(0, len(SPEECH), 4800):
                    await session.send_audio(SPEECH[start : start + 4800])
                    await asyncio.sleep(0.1)
            case "interrupt":
                await self.interrupt(session)
            case "change":
                await session.update_agent(rng.choice([self.a, self.b]))
            case "decide":
                await self.decide(session, recorded)
            case "snap":
                self.model.link.snap()

    async def interrupt(self, session):
        await session.interrupt()

    async def decide(self, session, recorded):
        for event in recorded.of_type("tool_approval_required"):
            if event.call_id not in self.asked:
                self.asked.add(event.call_id)
                if self.rng.random() < 0.5:
                    await session.approve_tool_call(event.call_id)
                else:
                    await session.reject_tool_call(event.call_id)

    async def settle(self, session, recorded):
        """Wait until nothing is in progress; a conversation that does not end is interrupted."""
        quiet = 0
        for _ in range(600):
            await self.decide(session, recorded)
            await asyncio.sleep(0.5)
            quiet = 0 if self.busy(session) else quiet + 1
            if quiet > 8:
                return
        raise AssertionError("the conversation does not come to rest")

    def busy(self, session):
        calls = [item for item in session.history if isinstance(item, RealtimeToolCallItem)]
        going_on = session.state is not RealtimeState.OPEN or self.model.engine.active_response is not None
        return going_on or any(item.output is None for item in calls)

    def check(self, session, recorded):
        trips = [event.response_id for event in recorded.of_type("guardrail_tripped")]
        assert len(trips) == len(set(trips)), "a response tripped twice"
        assert len(self.made) == len(set(self.made)), "a tool was run twice for one call"
        starts = [event.response_id for event in recorded.of_type("agent_start")]
        ends = [event.response_id for event in recorded.of_type("agent_end")]
        assert sorted(starts) == sorted(ends)
        assert len(starts) == len(set(starts))
        active = 0
        for event in recorded.events:
            active += {"agent_start": 1, "agent_end": -1}.get(event.type, 0)
            assert 0 <= active <= 1, "two responses at a time"
        spoken = [starts.index(event.audio.response_id) for event in recorded.of_type("audio")]
        assert spoken == sorted(spoken), "audio was heard before what was said earlier"
        for event in recorded.of_type("error"):
            code = event.error.get("code") if isinstance(event.error, dict) else ""
            assert code != "conversation_already_has_active_response"
        self.compare(session)

    def compare(self, session):
        """The session's history and the server's, item by item."""
        ours = {item.item_id: item for item in session.history}
        theirs = [entry for entry in self.model.engine.conversation if entry.item["type"] != "function_call_output"]
        order = [name for name in ours if name in {entry.id for entry in theirs}]
        assert order == [entry.id for entry in theirs]
        # The server may lack empty messages only: they are not part of a replay.
        for name in ours.keys() - {entry.id for entry in theirs}:
            parts = getattr(ours[name], "content", None)
            assert parts is not None, f"the call {name} is missing"
            assert not any(getattr(part, "text", None) or getattr(part, "transcript", None) for part in parts)
        answered = {
            entry.item["call_id"]: entry.item["output"]
            for entry in self.model.engine.conversation
            if entry.item["type"] == "function_call_output"
        }
        calls = {item.call_id: item.output for item in ours.values() if isinstance(item, RealtimeToolCallItem)}
        assert answered == calls
        for entry in theirs:
            self.compare_words(ours[entry.id], entry)

    def compare_words(self, item, entry):
        if entry.truncated_at_ms is None:
            assert get_text(item) == entry.text
        else:
            assert [part.audio_end_ms for part in item.content] == [entry.truncated_at_ms]


def play(schedule, seed):
    """Play a schedule and return the number of tool calls in it."""
    random.seed(seed)  # The reconnect delays are random as well.
    played = schedule(seed)

    async def once():
        async with asyncio.timeout(10_000):
            await played.run()

    run_in_virtual_time(once())
    return len(played.made)


def play_all(schedule, seeds):
    made = 0
    for seed in seeds:
        try:
            made += play(schedule, seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert made, "no tool was ever run"


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))])
def test_session_and_server_agree_after_random_calls(batch):
    play_all(Schedule, range(batch * 10, batch * 10 + 10))


@pytest.mark.soak
def test_session_and_server_agree_after_thousands_of_random_calls():
    play_all(Schedule, range(1000, 4000))
