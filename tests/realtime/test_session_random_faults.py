"""Random sessions with faults, in virtual time.

In addition to the slow sessions: players lag and stop, the history store fails, connects fail, the server duplicates
frames and starts responses by itself, guardrails hang, raise and trip late, iterators come and go, text agents are
tools, several tasks interrupt at once, and any task may close the session at any time.
"""

import asyncio
import random
from collections import deque
from contextlib import aclosing, suppress

import msgspec
import pytest

from factories.realtime import EventRecorder
from realtime.test_session_random_calls import Brain, play_all
from realtime.test_session_random_slow_calls import SlowFragileModel, SlowSchedule
from standfast import Agent, ToolContext, function_tool, open_store, output_guardrail
from standfast.agents.context import RunHooks
from standfast.agents.guardrails import GuardrailFunctionOutput
from standfast.base.errors import StandfastError
from standfast.realtime import RealtimeRunner, RealtimeState
from standfast.realtime._session.playback_clock import ROUNDING_TOLERANCE_MS
from standfast.realtime.local import CallTool, EnergyDetector, ToneTTS
from standfast.realtime.local.actions import InvalidRequest
from standfast.realtime.model import RealtimeModelSendRawMessage, RealtimePlaybackTracker
from standfast.realtime.openai.transport import TransportClosed
from standfast.testing import ScriptedModel, assistant_message, function_call

DOUBLED = {
    "response.created",
    "response.done",
    "conversation.item.added",
    "conversation.item.truncated",
    "input_audio_buffer.speech_started",
    "response.output_item.done",
}
LOST = {"response.created", "response.done", "session.updated", "conversation.item.added"}
LATE = {"conversation.item.added", "response.created", "response.output_item.added"}


class Faulty:
    """A link on which frames come twice, come late, never come or are refused, and that breaks behind any frame."""

    def __init__(self, link, rng, faults, *, lasts):
        self._link, self._rng, self._faults, self._lasts = link, rng, faults, lasts
        self._coming, self._late = deque(), None
        self._agreed = False

    async def send(self, frame):
        kind = msgspec.json.decode(frame)["type"]
        if kind in ("response.create", "response.cancel", "session.update") and self._strikes("lossy"):
            return
        if kind in ("response.create", "session.update") and self._strikes("refusing"):
            error = {"code": "no", "message": "no", "event_id": msgspec.json.decode(frame).get("event_id")}
            self._coming.append(msgspec.json.encode({"type": "error", "error": error}))
            return
        await self._link.send(frame)

    async def receive(self):
        while True:
            frame = self._coming.popleft() if self._coming else await self._link.receive()
            if self._lasts == 0:
                raise TransportClosed(1006, "it broke", ConnectionError("it broke"))
            self._lasts -= 1
            kind = msgspec.json.decode(frame)["type"]
            if not self._agreed:
                self._agreed = kind == "session.updated"
                return frame
            if kind in LOST and self._strikes("lossy"):
                continue
            if kind in DOUBLED and self._strikes("doubles"):
                self._coming.append(frame)
            if self._late is not None:
                self._coming.append(self._late)
                self._late = None
            elif kind in LATE and self._strikes("unordered"):
                self._late = frame
                continue
            return frame

    async def close(self):
        await self._link.close()

    def _strikes(self, fault):
        if not self._agreed or not self._faults.get(fault) or self._rng.random() > 0.15:
            return False
        self._faults[fault] -= 1
        return True


class WildModel(SlowFragileModel):
    refusals = brittle = 0

    async def open_transport(self, options):
        if self.refusals:
            self.refusals -= 1
            await asyncio.sleep(self._rng.choice([0, 0.2]))
            raise ConnectionError("nobody answers")
        link = await super().open_transport(options)
        lasts = self._rng.choice([self._rng.randint(5, 100), self._rng.randint(4, 12)]) if self.brittle else -1
        self.brittle = max(self.brittle - 1, 0)
        self.faulty = Faulty(link, self._rng, self.faults, lasts=lasts)
        return self.faulty


class Calling(Brain):
    async def respond(self, request):
        async for part in super().respond(request):
            if self._rng.random() < 0.03:
                raise ValueError("the model failed")
            yield CallTool("ask_clerk", {"input": "Is it?"}) if getattr(part, "name", "") == "ask_clerk" else part


class Recogniser:
    def __init__(self, rng):
        self._rng, self._count = rng, 0

    async def transcribe(self, audio):
        await asyncio.sleep(self._rng.choice([0, 0.1, 1.0, 4.0]))
        if self._rng.random() < 0.2:
            raise ValueError("inaudible")
        self._count += 1
        return f"spoken {self._count}"


class Troubled:
    """A history whose store is slow and fails until it is calm."""

    def __init__(self, session, rng):
        self._session, self._rng = session, rng
        self.session_id, self.session_settings = session.session_id, None
        self.calm = asyncio.Event()

    async def get_items(self, limit=None):
        return await self._session.get_items(limit)

    async def add_items(self, items, *, key=None):
        if not self.calm.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._rng.choice([0, 0.1, 1.5])):
                    await self.calm.wait()
            if not self.calm.is_set() and self._rng.random() < 0.3:
                raise OSError("the store is away")
        await self._session.add_items(items, key=key)
        if not self.calm.is_set() and self._rng.random() < 0.2:
            raise OSError("the answer of the store was lost")


class Player:
    """Plays what it hears and says so to a tracker: behind time, and perhaps not to the end."""

    def __init__(self, rng):
        self.tracker = RealtimePlaybackTracker()
        self._lag, self.stops = rng.choice([0, 0.05, 0.4]), rng.random() < 0.2
        self._left = rng.randint(5, 60) if self.stops else None
        self._to_play, self._news = [], asyncio.Event()

    async def listen(self, session):
        with suppress(Exception):
            async for event in session.events():
                if event.type == "audio":
                    self._to_play.append((event.item_id, event.content_index, len(event.audio.data) / 48))
                    self._news.set()
                elif event.type in ("audio_interrupted", "guardrail_tripped"):
                    self._to_play.clear()

    async def play(self):
        while self._left is None or self._left:
            while not self._to_play:
                self._news.clear()
                await self._news.wait()
                await asyncio.sleep(self._lag)
            piece = self._to_play[0]
            await asyncio.sleep(piece[2] / 1000)
            if self._to_play and self._to_play[0] is piece:
                self.tracker.on_play_ms(*self._to_play.pop(0))
                self._left = None if self._left is None else self._left - 1


class Ear(EventRecorder):
    """Listens without delay, and knows what it must not hear any more."""

    def __init__(self):
        super().__init__()
        self.started, self.silenced, self.cut = set(), set(), set()
        self.heard_of, self.requestable = set(), None
        self.speech_interrupts = True

    async def listen(self, session):
        async for event in session.events():
            self.events.append(event)
            match event.type:
                case "agent_start":
                    self.requestable = None
                    self.started.add(event.response_id)
                case "agent_end" if event.status == "lost" and event.response_id not in self.heard_of | self.silenced:
                    self.requestable = event.response_id
                case "raw_model_event" if event.data.type in ("function_call", "output_text_delta"):
                    self.heard_of.add(event.data.response_id)
                case "raw_model_event" if event.data.type == "speech_started" and self.speech_interrupts:
                    self.interrupted()
                case "guardrail_tripped":
                    self.silenced.add(event.response_id)
                case "audio_interrupted":
                    self.cut.add(event.item_id)
                case "audio":
                    self.heard_of.add(event.audio.response_id)
                    assert event.audio.response_id not in self.silenced, "audio after it was stopped"
                    assert event.item_id not in self.cut, "audio after it was interrupted"
                case "metric":
                    assert event.ms >= 0, f"{event.name} is negative"

    def interrupted(self):
        self.silenced |= self.started
        self.requestable = None


class Hooks(RunHooks):
    def __init__(self, schedule):
        self._schedule = schedule

    async def on_agent_end(self, context, agent, output):
        await self._schedule.perhaps_close(0.01)

    async def on_tool_start(self, context, agent, tool):
        await self._schedule.perhaps_close(0.01)


class WildSchedule(SlowSchedule):
    features = frozenset(
        {
            "brittle",
            "text",
            "transcriber",
            "player",
            "trouble",
            "doubles",
            "lossy",
            "refusing",
            "unordered",
            "refusals",
            "late",
            "nested",
            "closing",
            "wild",
            "hooks",
        }
    )

    def __init__(self, seed):
        super().__init__(seed)
        self.wild = wild = random.Random(f"wild {seed}")
        self.chosen = {name for name in sorted(self.features) if wild.random() < 0.35}
        recogniser = Recogniser(wild) if "transcriber" in self.chosen else None
        self.model = WildModel(
            Calling(wild),
            wild,
            tts=ToneTTS(),
            detector=EnergyDetector,
            pace=wild.choice([1.0, 1.0, 4.0, None]),
            transcriber=recogniser,
        )
        most = {"doubles": 50, "lossy": 1, "refusing": 3, "unordered": 10}
        self.model.faults = {name: most[name] for name in sorted(self.chosen & most.keys())}
        self.model.brittle = 4 if "brittle" in self.chosen else 0
        self.speech_interrupts = wild.random() < 0.7
        self.asked_to_close = self.deleted = False
        self.bye = None

        @output_guardrail
        async def late(context, agent, output):
            await self.perhaps_close(0.01)
            await asyncio.sleep(wild.choice([0, 1.0, 3.0, 50.0]))
            if wild.random() < 0.2:
                raise ValueError("the guardrail failed")
            return GuardrailFunctionOutput(None, wild.random() < 0.1)

        @function_tool
        async def closing(context: ToolContext) -> str:
            self.made.append(context.tool_call_id)
            await self.perhaps_close(0.3)
            return "stays open"

        @function_tool
        async def stubborn(context: ToolContext) -> str:
            self.made.append(context.tool_call_id)
            try:
                await asyncio.sleep(wild.choice([0, 5]))
            except asyncio.CancelledError:
                await asyncio.sleep(wild.choice([0.1, 1.5]))
                raise
            return "done"

        @function_tool(needs_approval=True)
        async def paying() -> str:
            await asyncio.sleep(wild.choice([0, 0.3]))
            return "paid"

        steps = [
            [function_call("paying", {}, call_id=f"p{n}")] if n % 2 else [assistant_message(f"{n}")] for n in range(200)
        ]
        clerk = Agent(name="clerk", model=ScriptedModel(steps), tools=[paying])
        if "late" in self.chosen:
            self.a.output_guardrails.append(late)
        if "closing" in self.chosen:
            self.b.tools += [closing, stubborn]
        if "nested" in self.chosen:
            self.a.tools.append(clerk.as_tool("ask_clerk", "Asks the clerk."))

    async def perhaps_close(self, chance):
        if "closing" in self.chosen and not self.asked_to_close and self.wild.random() < chance:
            self.asked_to_close = True
            await self.session.close(self.wild.choice([0, 0.05, 0.5, 2.0]))

    async def run(self):
        wild = self.wild
        config = {
            "guardrails_settings": {"debounce_text_length": 8, "hold_back_audio": self.held, "timeout": 30.0},
            "model_settings": {
                "turn_detection": {
                    "type": "server_vad",
                    "create_response": self.answers,
                    "interrupt_response": self.speech_interrupts,
                }
            },
            "reconnect": {"initial_delay": 0.1, "roll_over_after": wild.choice([None, None, 9.0, 12.0])},
            "tool_execution": {"approval_timeout": wild.choice([None, None, 0.05, 1.0])},
            "async_tool_calls": wild.random() < 0.7,
        }
        if "transcriber" in self.chosen:
            config["model_settings"]["input_audio_transcription"] = {"model": "any"}
        if "text" in self.chosen:
            config["model_settings"]["output_modalities"] = ["text"]
        if "hooks" in self.chosen:
            config["hooks"] = Hooks(self)
        player = Player(wild) if "player" in self.chosen else None
        options = {} if player is None else {"playback_tracker": player.tracker}
        async with open_store("memory://") as store:
            history = store.session("s")
            kept = Troubled(history, wild) if "trouble" in self.chosen else history
            runner = RealtimeRunner(self.a, model=self.model, config=config)
            self.session = session = await runner.run(session=kept, model_config=options)
            self.ear = ear = Ear()
            ear.speech_interrupts = self.speech_interrupts
            beside = [asyncio.ensure_future(ear.listen(session))]
            self.listener = beside[0]
            await asyncio.sleep(0)
            if player is not None:
                beside += [asyncio.ensure_future(player.listen(session)), asyncio.ensure_future(player.play())]
            async with session:
                acts = await self.talk(session, ear)
                if not self.ends_early and not self.asked_to_close:
                    await asyncio.wait(acts)
                    self.model.faults.clear()
                    if not self.asked_to_close:  # Whatever was lost, this is answered.
                        self.bye = len(ear.events)
                        await session.send_message("bye")
                    await self.settle(session, ear)
                    if not self.asked_to_close:
                        self.check(session, ear)
                        instructions = self.model.engine.to_wire()["instructions"]
                        assert instructions == session.current_agent.instructions
                if isinstance(kept, Troubled):
                    kept.calm.set()
                began, deadline = asyncio.get_running_loop().time(), wild.choice([2.0, 2.0, 0.5])
                report = await session.close(deadline)
                took = asyncio.get_running_loop().time() - began
                assert took <= deadline + 0.3, f"closing took {took} s"
                ended = await asyncio.gather(*acts, return_exceptions=True)
            done, hanging = await asyncio.wait(beside[:2], timeout=1.0)
            assert not hanging, "an iterator does not end"
            if player is not None:
                beside[-1].cancel()
            for task in done:
                task.result()
            assert "closing" in self.chosen or report.still_running == ()
            assert session.state is RealtimeState.CLOSED
            assert [error for error in ended if error and not isinstance(error, StandfastError)] == []
            if self.asked_to_close:
                return
            assert report.unwritten_count == 0
            assert self.ends_early or (report.cancelled, report.unsent_outputs) == ((), ())
            assert self.ends_early or self.chosen & {"lossy", "refusing"} or [error for error in ended if error] == []
            if player is None or not player.stops:
                self.check_written(session, await history.get_items())

    async def act(self, session, recorded):
        if self.asked_to_close:
            return
        wild, usual = self.wild, "wild" not in self.chosen
        kinds = ["usual", "storm", "unasked", "aside", "iterate", "always", "refuse", "delete", "close"]
        match "usual" if usual else wild.choices(kinds, [12, 1, 1, 1, 1, 1, 1, 1, 0.3])[0]:
            case "usual":
                await super().act(session, recorded)
            case "storm":
                await asyncio.gather(*(self.interrupt(session) for _ in range(3)))
            case "unasked":
                with suppress(InvalidRequest):
                    if session.state is not RealtimeState.OPEN or self.model.slow.under_way:
                        return  # The server cannot respond to settings that it has not received.
                    self.model.engine.start_response(asyncio.get_running_loop().time())
                    self.model._transport._runner.flush()
            case "aside":
                wanted = {"conversation": "none", "output_modalities": ["text"]}
                message = {"type": "response.create", "other_data": {"response": wanted}}
                with suppress(StandfastError, ConnectionError):
                    await session.model.send_event(RealtimeModelSendRawMessage(message))
            case "iterate":
                async with aclosing(session.events()) as events:
                    for _ in range(wild.randint(0, 20)):
                        try:
                            async with asyncio.timeout(wild.choice([0.01, 2.0])):
                                await anext(events)
                        except (TimeoutError, StopAsyncIteration):
                            break
            case "always":
                for event in recorded.of_type("tool_approval_required"):
                    if event.call_id not in self.asked:
                        self.asked.add(event.call_id)
                        decide = wild.choice([session.approve_tool_call, session.reject_tool_call])
                        await decide(event.call_id, always=True)
            case "refuse":
                if "refusals" in self.chosen and session.state is RealtimeState.OPEN:
                    self.model.refusals = wild.randint(1, 3)
                    self.model.link.snap()
            case "delete":
                names = [item.item_id for item in session.history[:-3] if item.type == "message"]
                if names and session.state is RealtimeState.OPEN:
                    self.deleted = True
                    message = {"type": "conversation.item.delete", "other_data": {"item_id": wild.choice(names)}}
                    with suppress(StandfastError, ConnectionError):
                        await session.model.send_event(RealtimeModelSendRawMessage(message))
            case "close":
                await self.perhaps_close(1.0)

    async def interrupt(self, session):
        interrupting = asyncio.ensure_future(session.interrupt())
        await asyncio.sleep(0)
        self.ear.interrupted()
        await interrupting

    def busy(self, session):
        if self.listener.done():
            self.listener.result()
        if session.state is RealtimeState.CLOSED:
            return False
        judged = len(self.ear.of_type("agent_start")) == len(self.ear.of_type("agent_end"))
        answered = self.bye is None or any(event.type == "agent_start" for event in self.ear.events[self.bye :])
        return not judged or not answered or super().busy(session)

    def check_written(self, session, written):
        # The end of an answer that came a little late to its player's word counts as heard.
        rounded = {
            e.subject for e in self.ear.of_type("metric") if e.name == "truncated" and e.ms <= ROUNDING_TOLERANCE_MS
        }
        if not self.deleted and "lossy" not in self.chosen and ("player" not in self.chosen or not rounded):
            super().check_written(session, written)

    def compare(self, session):
        if "lossy" not in self.chosen:
            super().compare(session)

    def check(self, session, recorded):
        super().check(session, recorded)
        assert recorded.requestable is None, "a response of which nothing was heard was not requested again"
        counted = [event.response_id for event in recorded.of_type("usage")]
        assert len(counted) == len(set(counted)), "a response was counted twice"
        trips = len(recorded.of_type("guardrail_tripped"))
        entries = [entry.item for entry in self.model.engine.conversation if entry.item["type"] == "message"]
        words = [item for item in entries if item["role"] == "user" and "guardrail triggered" in str(item)]
        assert len(words) <= trips, "more than one word about a trip"
        for summary in session.metrics.summaries().values():
            assert min(summary.last, summary.p50, summary.p95, summary.maximum) >= 0


@pytest.mark.parametrize("batch", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 2, 3))])
def test_a_session_stays_consistent_under_random_faults(batch):
    play_all(WildSchedule, range(batch * 20, batch * 20 + 20))


@pytest.mark.soak
def test_sessions_stay_consistent_under_thousands_of_random_faults():
    play_all(WildSchedule, range(1000, 4000))
