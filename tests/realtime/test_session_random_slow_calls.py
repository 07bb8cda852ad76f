"""Random sessions over slow connections with a history: the history has what was heard, however a session ends.

In addition to the random calls: frames are delayed in both directions, tools run one after the other or use the
session, switches fail or are cancelled, approvals expire, connections roll over, and sessions end in the middle.
"""

import asyncio
from contextlib import suppress

import pytest

from factories.fragile_realtime_model import FragileModel
from factories.realtime import record_events
from realtime.test_session_random_calls import Brain, Schedule, play_all
from standfast import ToolContext, function_tool, open_store
from standfast.base.errors import StandfastError
from standfast.base.item_pairs import find_unpaired
from standfast.realtime import LocalRealtimeModel, RealtimeAgent, RealtimeRunner
from standfast.realtime._session.item_conversion import INAUDIBLE_TEXT, get_text
from standfast.realtime.items import RealtimeToolCallItem
from standfast.realtime.local import EnergyDetector, ToneTTS
from standfast.realtime.openai.transport import TransportClosed

IN_PARTS = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "it's\nin parts"}]}


class Slow:
    """A link whose frames take their time in both directions, and keep their order."""

    def __init__(self, link, rng, lag):
        self._link, self._rng, self._lag = link, rng, lag
        self._there, self._here = asyncio.Queue(), asyncio.Queue()
        self._due = {self._there: 0.0, self._here: 0.0}
        self._carriers = [asyncio.ensure_future(self._carry_there()), asyncio.ensure_future(self._carry_here())]
        self.under_way = 0

    async def send(self, frame):
        self._put(self._there, frame)

    async def receive(self):
        frame = await self._take(self._here)
        if isinstance(frame, TransportClosed):
            raise frame
        return frame

    async def close(self):
        for carrier in self._carriers:
            carrier.cancel()
        await self._link.close()

    async def _carry_there(self):
        with suppress(TransportClosed):
            while True:
                await self._link.send(await self._take(self._there))

    async def _carry_here(self):
        try:
            while True:
                self._put(self._here, await self._link.receive())
        except TransportClosed as closed:
            self._put(self._here, closed)

    def _put(self, way, frame):
        self.under_way += 1
        delay = self._lag * self._rng.choices([0, 1, 2, 5], [3, 4, 2, 1])[0]
        self._due[way] = max(self._due[way], asyncio.get_running_loop().time() + delay)
        way.put_nowait((self._due[way], frame))

    async def _take(self, way):
        due, frame = await way.get()
        await asyncio.sleep(due - asyncio.get_running_loop().time())
        self.under_way -= 1
        return frame


class SlowModel(LocalRealtimeModel):
    def __init__(self, responder, rng, **more):
        super().__init__(responder, **more)
        self._rng, self._lag = rng, rng.choice([0, 0.001, 0.03, 0.2])

    async def open_transport(self, options):
        self.slow = Slow(await super().open_transport(options), self._rng, self._lag)
        return self.slow


class SlowFragileModel(FragileModel, SlowModel):
    pass


class SlowSchedule(Schedule):
    def __init__(self, seed):
        super().__init__(seed)
        rng = self.rng
        pace = rng.choice([1.0, None])
        self.model = SlowFragileModel(Brain(rng), rng, tts=ToneTTS(), detector=EnergyDetector, pace=pace)
        self.ends_early = rng.random() < 0.25

        @function_tool
        async def using(context: ToolContext) -> str:
            self.made.append(context.tool_call_id)
            await asyncio.sleep(rng.choice([0, 0.05]))
            match rng.choice(["say", "change", "interrupt"]):
                case "say":
                    await self.session.send_message("from a tool")
                case "change":
                    await self.session.update_agent(rng.choice([self.a, self.b]))
                case "interrupt":
                    await self.session.interrupt()
            return "used"

        for agent in (self.a, self.b):
            agent.tools.append(using)
            agent.instructions = f"I am {agent.name}."
        self.broken = RealtimeAgent(name="broken", instructions=self._no_instructions)

    async def run(self):
        rng = self.rng
        config = {
            "guardrails_settings": {"debounce_text_length": 8, "hold_back_audio": self.held},
            "model_settings": {"turn_detection": {"type": "server_vad", "create_response": self.answers}},
            "reconnect": {"initial_delay": 0.1, "roll_over_after": rng.choice([None, None, 9.0, 12.0])},
            "tool_execution": {"approval_timeout": rng.choice([None, None, 0.05, 1.0])},
            "async_tool_calls": rng.random() < 0.7,
        }
        async with open_store("memory://") as store:
            history = store.session("s")
            self.session = session = await RealtimeRunner(self.a, model=self.model, config=config).run(session=history)
            async with record_events(session) as recorded, session:
                acts = await self.talk(session, recorded)
                if not self.ends_early:
                    await asyncio.gather(*acts)
                    await self.settle(session, recorded)
                    self.check(session, recorded)
                    assert self.model.engine.to_wire()["instructions"] == session.current_agent.instructions
                report = await session.close()
                ended = await asyncio.gather(*acts, return_exceptions=True)
            assert (report.still_running, report.unwritten_count) == ((), 0)
            assert self.ends_early or (report.cancelled, report.unsent_outputs) == ((), ())
            assert [error for error in ended if error and not isinstance(error, StandfastError)] == []
            self.check_written(session, await history.get_items())

    async def talk(self, session, recorded):
        acts = []
        for _ in range(self.rng.randint(3, 14)):
            await asyncio.sleep(self.rng.choice([0, 0, 0.02, 0.3, 1.0]))
            acts.append(asyncio.ensure_future(self.act(session, recorded)))
            if self.rng.random() < 0.6:
                await asyncio.wait({acts[-1]}, timeout=60)
        return acts

    async def act(self, session, recorded):
        rng = self.rng
        match rng.choices(["as usual", "in parts", "fail", "give up"], [16, 2, 1, 1])[0]:
            case "as usual":
                await super().act(session, recorded)
            case "in parts":
                await session.send_message(rng.choice([IN_PARTS, "two\nlines"]))
            case "fail":
                with pytest.raises(ValueError):
                    await session.update_agent(self.broken)
            case "give up":
                with suppress(TimeoutError):
                    async with asyncio.timeout(rng.choice([0, 0.001, 0.05, 0.3])):
                        await session.update_agent(rng.choice([self.a, self.b]))

    def busy(self, session):
        return self.model.slow.under_way > 0 or super().busy(session)

    def check_written(self, session, written):
        assert find_unpaired(written) == []
        messages = [item for item in session.history if not isinstance(item, RealtimeToolCallItem)]
        said = [get_text(item) or INAUDIBLE_TEXT for item in messages if get_text(item) or item.role == "user"]
        contents = [item["content"] for item in written if item["type"] == "message"]
        assert [content if isinstance(content, str) else content[-1]["text"] for content in contents] == said

    def _no_instructions(self, context, agent):
        raise ValueError("there are no instructions")


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))])
def test_the_history_has_what_was_heard_after_random_calls(batch):
    play_all(SlowSchedule, range(batch * 10, batch * 10 + 10))


@pytest.mark.soak
def test_the_history_has_what_was_heard_after_thousands_of_random_calls():
    play_all(SlowSchedule, range(1000, 4000))
