"""One worker's conversation: what the link hears, as the exchange orders it, to whoever waits."""

import asyncio
from collections.abc import Callable

from holdfast.workers.config import SessionConfig
from holdfast.workers.errors import Cause, RequestFailed, WorkerDied
from holdfast.workers.exchange import DRAIN, Deliver, Drain, Exchange, General, Reply, Step
from holdfast.workers.interceptors import Interceptors
from holdfast.workers.link import Link
from holdfast.workers.outlet import Clip, Outlet, Shelf, Stream
from holdfast.workers.wire import messages as m

_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
# A peer that announces frames of this many limits has lost the framing and will not find it again.
_HOPELESS = 64
_HEAVIEST_SHELF = 16 << 20
# Code that has said nothing for so long is acknowledged by what the kernel says of its message. A timer that goes
# off sooner costs every turn of the loop: it is the next one of the whole processor, and set anew each time.
_SILENCE = 0.01


class Execution:
    """One running piece of code, until it has its ``last`` message."""

    def __init__(
        self,
        execution_id: str,
        outlet: Outlet,
        output_limit: int | None,
        over: Callable[[m.Message], None],
    ) -> None:
        self.id = execution_id
        self.outlet = outlet
        self.output_limit = output_limit
        self.clips: dict[Stream, Clip] = {}
        self.last: m.Message | None = None
        self._over = over
        self._end: asyncio.Future[m.Message] | None = None

    def finish(self, last: m.Message) -> None:
        self.last = last
        if self._end is not None:
            self._end.set_result(last)
        self._over(last)

    async def end(self) -> m.Message:
        """Wait for the last message. To stop waiting does not stop the code."""
        if self.last is not None:
            return self.last
        if self._end is None:
            self._end = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._end)


class Conversation:
    """Listens to a link until it ends. Everything runs in the loop's reader callbacks; nothing awaits."""

    def __init__(
        self,
        config: SessionConfig,
        *,
        interceptors: Interceptors,
        noted: Callable[[m.Message], None],
        over: Callable[[Cause], None],
    ) -> None:
        self.config, self.interceptors = config, interceptors
        self.loop = asyncio.get_running_loop()
        self.exchange = Exchange()
        self.execution: Execution | None = None
        self.link: Link | None = None
        self.general = Shelf(most=config.general_queue, heaviest=_HEAVIEST_SHELF)
        self.arrived = asyncio.Event()
        self.counts = {"control": 0, "bulk": 0, "bytes": 0}
        self._noted, self._over = noted, over
        self._requests: dict[str, asyncio.Future[m.Message]] = {}
        self._background = {stream: Clip(None) for stream in _STREAMS}
        self._deadline: float | None = None
        self._late: Callable[[Conversation, Execution], None] = lambda *_: None
        self._timer: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None

    # -- speaking

    def begin(self, message: m.ExecuteMessage, over: Callable[[m.Message], None]) -> Execution:
        """Send code to run; ``over`` is called with its last message.

        Nothing else may be running; nothing was sent if this raises.
        """
        link = self.live()
        outlet = Outlet(limit=self.config.output_buffer, emptied=link.resume, loop=self.loop)
        execution = Execution(message.id, outlet, self.config.output_limit, over)
        self.exchange.start(message.id)
        try:
            link.send(message)
        except BaseException:
            self.exchange.running = None
            raise
        self.execution, self._deadline = execution, None
        if self._silence is None:
            self._silence = self.loop.call_later(_SILENCE, self._break_the_silence, execution)
        return execution

    def _break_the_silence(self, seen: Execution) -> None:
        """Acknowledge code that was there at the last look and says nothing. Most ends sooner."""
        self._silence = None
        execution = self.execution
        if execution is None or self.exchange.streaming or self.cause is not None:
            return
        if execution is not seen or not self._presume():
            self._silence = self.loop.call_later(_SILENCE, self._break_the_silence, execution)

    def _presume(self) -> bool:
        """Whether the worker has the code, which is then acknowledged though its own word is late."""
        if self.link is None or not self.link.taken():
            return False
        for step in self.exchange.presume():
            self._acknowledge(step)
        return True

    def expire_at(self, when: float, late: "Callable[[Conversation, Execution], None]") -> None:
        """Set the loop's time at which the running execution's is up, and ``late`` is called.

        The timer of an earlier execution is left to go off and set again then: nearly all code ends long
        before its deadline, and a timer set and cancelled for each costs as much as a small cell.
        """
        self._deadline, self._late = when, late
        if self._timer is not None and self._timer.when() > when:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(when, self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self.execution is None or self._deadline is None:
            return
        if self._deadline > self.loop.time():
            self.expire_at(self._deadline, self._late)
        else:
            self._late(self, self.execution)

    async def request(self, message: m.Message, *, fds: tuple[int, ...] = ()) -> m.Message:
        """Send and wait for the reply. Raises RequestFailed or WorkerDied; answered also while code runs."""
        link = self.live()
        answer: asyncio.Future[m.Message] = self.loop.create_future()
        self.exchange.ask(message.id)
        self._requests[message.id] = answer
        try:
            link.send(message, fds)
            if self.execution is not None:
                link.line.resume()
                link.ring()
            reply = await answer
        finally:
            self.exchange.forget(message.id)
            self._requests.pop(message.id, None)
        if isinstance(reply, m.ErrorMessage):
            if self.cause is not None:
                raise WorkerDied(self.cause)
            raise RequestFailed(reply.exception_type, reply.exception_message)
        if type(reply) is not type(message):
            said = f"the worker answered a {type(message).__name__} with a {type(reply).__name__}"
            raise RequestFailed("ProtocolError", said)
        return reply

    cause: Cause | None = None

    def live(self) -> Link:
        """The link, or WorkerDied."""
        if self.link is None or self.cause is not None:
            raise WorkerDied(self.cause or Cause("start", "the worker was not started"))
        return self.link

    # -- hearing (the link's Listener)

    def heard(self, message: m.AnyMessage) -> None:
        self.counts["control"] += 1
        steps = self.exchange.hear(message)
        if self.interceptors.records:
            steps = self._show(message, steps)
        self._take(steps)

    def _show(self, message: m.AnyMessage, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Let interceptors see what comes before a message, and then itself. Returns what is left to do."""
        if not steps and isinstance(message, m.AckMessage) and message.of == self.exchange.running:
            # They have seen the one that was presumed.
            return steps
        if steps and isinstance(steps[0], Deliver) and steps[0].message is not message:
            self._acknowledge(steps[0])
            steps = steps[1:]
        if DRAIN in steps and self.link is not None:
            self.link.drain()
        self.interceptors.show(message)
        return steps

    def wrote(self, stream: Stream, data: bytes) -> None:
        self.counts["bulk"] += 1
        self.counts["bytes"] += len(data)
        text = self._clip(stream).feed(data)
        if text:
            self._output(stream, text)

    def _clip(self, stream: Stream) -> Clip:
        execution = self.execution
        if execution is not None and not self.exchange.streaming:
            # Written behind the worker's back: its acknowledgement is on the way.
            self._presume()
        if execution is None or not self.exchange.streaming:
            return self._background[stream]
        if stream not in execution.clips:
            execution.clips[stream] = Clip(execution.output_limit)
        return execution.clips[stream]

    def _acknowledge(self, presumed: Deliver) -> None:
        self.interceptors.show(presumed.message)
        self._deliver(presumed)

    def garbled(self, problem: str) -> None:
        self._take(self.exchange.garbage(problem))

    def overlong(self, size: int) -> None:
        self._take(self.exchange.oversize(size, self.config.frame_limit))
        if size > _HOPELESS * self.config.frame_limit and self.link is not None:
            self.link.kill(Cause("protocol", f"the worker announced a message of {size} bytes"))

    def ended(self, cause: Cause) -> None:
        self.cause = cause
        for timer in (self._timer, self._silence):
            if timer is not None:
                timer.cancel()
        self._take(self.exchange.lost(cause.kind, str(cause)))
        self.arrived.set()
        self._over(cause)

    # -- routing

    def _take(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if type(step) is Drain:
                if self.link is not None:
                    self.link.drain()
            elif isinstance(step, Deliver):
                self._deliver(step)
            elif isinstance(step, Reply):
                answer = self._requests.get(step.request_id)
                if answer is not None and not answer.done():
                    answer.set_result(step.message)
            elif isinstance(step, General):
                self._file(step.message)
            else:
                self._noted(step.message)

    def _deliver(self, step: Deliver) -> None:
        execution = self.execution
        if execution is None or execution.id != step.execution_id:
            self._file(step.message)
            return
        if step.last:
            self._finish(execution, step.message)
            return
        outlet = execution.outlet
        outlet.put(step.message)
        if outlet.held and outlet.full and self.link is not None:
            self.link.pause()
            if not isinstance(step.message, m.OutputMessage) and not self._requests:
                # What floods comes by the protocol itself, and nobody waits there for an answer.
                self.link.line.pause()

    def _finish(self, execution: Execution, last: m.Message) -> None:
        if execution.clips:
            self._close_clips(execution)
        execution.outlet.put(last, last=True)
        self.execution = None
        self.exchange.finish()
        if self.link is not None and self.cause is None:
            self.link.resume()
        execution.finish(last)

    def _close_clips(self, execution: Execution) -> None:
        for stream, clip in execution.clips.items():
            rest, dropped, tail = clip.finish()
            if rest:
                execution.outlet.put(self._message(stream, rest, execution.id))
            if dropped:
                execution.outlet.put(self._message(stream, tail, execution.id, dropped))

    def _output(self, stream: Stream, text: str) -> None:
        running = self.exchange.running if self.exchange.streaming else None
        message = self._message(stream, text, running or "")
        self.interceptors.show(message)
        self._take((self.exchange.output(message),))

    def _message(self, stream: Stream, text: str, execution_id: str, dropped: int = 0) -> m.OutputMessage:
        return m.OutputMessage(data=text, stream=stream, execution_id=execution_id, dropped=dropped)

    def _file(self, message: m.Message) -> None:
        self.general.put(message)
        self.arrived.set()
