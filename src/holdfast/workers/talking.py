"""One worker's conversation: what the link hears, as the exchange orders it, to whoever waits."""

import asyncio
import collections
from collections.abc import Callable

from holdfast.workers.config import SessionConfig
from holdfast.workers.errors import Cause, RequestFailed, WorkerDied
from holdfast.workers.exchange import Deliver, Drain, Exchange, General, Reply, Step
from holdfast.workers.interceptors import Interceptors
from holdfast.workers.link import Link
from holdfast.workers.outlet import Clip, Outlet, Shelf, Stream
from holdfast.workers.wire import messages as m

_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
# A peer that announces frames of this many limits has lost the framing and will not find it again.
_HOPELESS = 64
_HEAVIEST_SHELF = 16 << 20


class Execution:
    """One running piece of code. ``ended`` is set with its last message."""

    def __init__(self, message: m.ExecuteMessage, outlet: Outlet, output_limit: int | None) -> None:
        self.id = message.id
        self.outlet = outlet
        self.output_limit = output_limit
        self.clips: dict[Stream, Clip] = {}
        self.ended: asyncio.Future[m.Message] = asyncio.get_running_loop().create_future()
        self.over: Callable[[m.Message], None] = lambda _: None


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
        self.exchange = Exchange()
        self.execution: Execution | None = None
        self.link: Link | None = None
        self.general = Shelf(most=config.general_queue, heaviest=_HEAVIEST_SHELF)
        self.arrived = asyncio.Event()
        self.counts: collections.Counter[str] = collections.Counter()
        self._noted, self._over = noted, over
        self._requests: dict[str, asyncio.Future[m.Message]] = {}
        self._background = {stream: Clip(None) for stream in _STREAMS}

    # -- speaking

    def begin(self, message: m.ExecuteMessage) -> Execution:
        """Send code to run. Nothing else may be running; nothing was sent if this raises."""
        link = self.live()
        outlet = Outlet(limit=self.config.output_buffer, emptied=link.resume)
        execution = Execution(message, outlet, self.config.output_limit)
        self.exchange.start(message.id)
        try:
            link.send(message)
        except BaseException:
            self.exchange.running = None
            raise
        self.execution = execution
        return execution

    async def request(self, message: m.Message, *, fds: tuple[int, ...] = ()) -> m.Message:
        """Send and wait for the reply. Raises RequestFailed or WorkerDied; answered also while code runs."""
        link = self.live()
        answer: asyncio.Future[m.Message] = asyncio.get_running_loop().create_future()
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
        if steps and isinstance(steps[0], Drain):
            self._take(steps[:1])
            steps = steps[1:]
        self.interceptors.show(message)
        self._take(steps)

    def wrote(self, stream: Stream, data: bytes) -> None:
        self.counts["bulk"] += 1
        self.counts["bytes"] += len(data)
        text = self._clip(stream).feed(data)
        if text:
            self._output(stream, text)

    def _clip(self, stream: Stream) -> Clip:
        execution = self.execution
        if execution is None or not self.exchange.streaming:
            return self._background[stream]
        if stream not in execution.clips:
            execution.clips[stream] = Clip(execution.output_limit)
        return execution.clips[stream]

    def garbled(self, problem: str) -> None:
        self._take(self.exchange.garbage(problem))

    def overlong(self, size: int) -> None:
        self._take(self.exchange.oversize(size, self.config.frame_limit))
        if size > _HOPELESS * self.config.frame_limit and self.link is not None:
            self.link.kill(Cause("protocol", f"the worker announced a message of {size} bytes"))

    def ended(self, cause: Cause) -> None:
        self.cause = cause
        self._take(self.exchange.lost(cause.kind, str(cause)))
        self.arrived.set()
        self._over(cause)

    # -- routing

    def _take(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            if isinstance(step, Deliver):
                self._deliver(step)
            elif isinstance(step, Drain):
                if self.link is not None:
                    self.link.drain()
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
            self._finish(execution)
        execution.outlet.put(step.message, last=step.last)
        if step.last:
            self.execution = None
            self.exchange.finish()
            if self.link is not None and self.cause is None:
                self.link.resume()
            if not execution.ended.done():
                execution.ended.set_result(step.message)
                execution.over(step.message)
        elif execution.outlet.full and self.link is not None:
            self.link.pause()
            if not isinstance(step.message, m.OutputMessage) and not self._requests:
                # What floods comes by the protocol itself, and nobody waits there for an answer.
                self.link.line.pause()

    def _finish(self, execution: Execution) -> None:
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
