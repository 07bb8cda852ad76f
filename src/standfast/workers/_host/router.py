"""Route the messages of one worker to the execution, request or queue that they belong to.

The protocol decides where a message goes; the router delivers it.
"""

import asyncio
from collections.abc import Callable

import msgspec

from standfast.workers._host.connection import WorkerConnection
from standfast.workers._host.message_limits import MessageLimits
from standfast.workers._host.output import BoundedQueue, MessageQueue, OutputLimiter, StreamName
from standfast.workers._host.protocol import (
    DRAIN_OUTPUT,
    DeliverToExecution,
    DeliverToGeneralQueue,
    DrainOutput,
    KillWorker,
    ResolveRequest,
    RoutingAction,
    WorkerProtocol,
)
from standfast.workers.config import SessionConfig
from standfast.workers.errors import Cause, WorkerDied, WorkerRequestFailed
from standfast.workers.interceptors import Interceptors
from standfast.workers.wire import messages as m

_STREAM_NAMES: tuple[StreamName, StreamName] = ("stdout", "stderr")
# A frame of more than this many limits means that the stream is out of sync, which cannot be repaired.
_FRAMING_LOST_FACTOR = 64
_GENERAL_QUEUE_BYTES = 16 << 20
# When code has sent nothing for this long, it counts as acknowledged once the kernel reports its message as read. A
# shorter timer would make every iteration of the event loop slower.
_ACK_TIMEOUT = 0.01


class ActiveExecution:
    """An execution that runs in the worker, until it has its ``last_message``."""

    def __init__(
        self,
        execution_id: str,
        queue: MessageQueue,
        output_limit: int | None,
        on_end: Callable[[m.Message], None],
    ) -> None:
        self.id = execution_id
        self.queue = queue
        self.output_limit = output_limit
        self.limiters: dict[StreamName, OutputLimiter] = {}
        self.last_message: m.Message | None = None
        self._on_end = on_end
        self._end_future: asyncio.Future[m.Message] | None = None

    def finish(self, last_message: m.Message) -> None:
        self.last_message = last_message
        if self._end_future is not None:
            self._end_future.set_result(last_message)
        self._on_end(last_message)

    async def wait_until_ended(self) -> m.Message:
        """Wait for the last message. Cancelling the wait does not stop the code."""
        if self.last_message is not None:
            return self.last_message
        if self._end_future is None:
            self._end_future = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._end_future)


class MessageRouter:
    """Listens to a connection until the worker exits. All routing happens in callbacks of the event loop."""

    def __init__(
        self,
        config: SessionConfig,
        *,
        interceptors: Interceptors,
        on_session_message: Callable[[m.Message], None],
        on_worker_exit: Callable[[Cause], None],
    ) -> None:
        self.config, self.interceptors = config, interceptors
        # The worker counts the value of a result in the same way. The rest is for representations and listings.
        self.frame_weight_limit = config.value_limit + 65536
        self.message_limits = MessageLimits(repr_limit=config.repr_limit, value_limit=config.value_limit)
        self.loop = asyncio.get_running_loop()
        self.protocol = WorkerProtocol()
        self.execution: ActiveExecution | None = None
        self.connection: WorkerConnection | None = None
        self.general_queue = BoundedQueue(max_messages=config.general_queue, max_bytes=_GENERAL_QUEUE_BYTES)
        self.message_arrived = asyncio.Event()
        self.counts = {"control": 0, "bulk": 0, "bytes": 0}
        self._on_session_message, self._on_worker_exit = on_session_message, on_worker_exit
        self._pending_requests: dict[str, asyncio.Future[m.Message]] = {}
        self._background_limiters = {stream: OutputLimiter(None) for stream in _STREAM_NAMES}
        self._deadline: float | None = None
        self._on_deadline: Callable[[MessageRouter, ActiveExecution], None] = lambda *_: None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._ack_timer: asyncio.TimerHandle | None = None

    # -- sending

    def start_execution(self, message: m.ExecuteMessage, on_end: Callable[[m.Message], None]) -> ActiveExecution:
        """Send code to the worker; ``on_end`` is called with its last message.

        No other execution may be running. Nothing was sent if this raises.
        """
        connection = self.require_connection()
        queue = MessageQueue(limit=self.config.output_buffer, on_drained=connection.resume, loop=self.loop)
        execution = ActiveExecution(message.id, queue, self.config.output_limit, on_end)
        allow_input = self.config.allow_input and message.allow_input is not False
        self.protocol.start_execution(message.id, allow_input=allow_input)
        try:
            connection.send(message)
        except BaseException:
            self.protocol.running_id = None
            raise
        self.execution, self._deadline = execution, None
        if self._ack_timer is None:
            self._ack_timer = self.loop.call_later(_ACK_TIMEOUT, self._check_ack, execution)
        return execution

    def _check_ack(self, previous: ActiveExecution) -> None:
        """Acknowledge code that is still silent since the last check. Most executions end before the first one."""
        self._ack_timer = None
        execution = self.execution
        if execution is None or self.protocol.is_streaming or self.cause is not None:
            return
        if execution is not previous or not self._presume_ack():
            self._ack_timer = self.loop.call_later(_ACK_TIMEOUT, self._check_ack, execution)

    def _presume_ack(self) -> bool:
        """Acknowledge the code in place of the worker if the worker has read it. Returns whether it has."""
        if self.connection is None or not self.connection.is_send_queue_empty():
            return False
        for action in self.protocol.presume_ack():
            self._deliver_presumed_ack(action)
        return True

    def set_deadline(self, when: float, on_deadline: "Callable[[MessageRouter, ActiveExecution], None]") -> None:
        """Call ``on_deadline`` if the running execution has not ended at this time of the loop.

        The timer of an earlier execution is kept and set again when it fires: nearly all code ends long before its
        deadline, and a timer that is set and cancelled for each execution costs as much as a small cell.
        """
        self._deadline, self._on_deadline = when, on_deadline
        if self._deadline_timer is not None and self._deadline_timer.when() > when:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        if self._deadline_timer is None:
            self._deadline_timer = self.loop.call_at(when, self._check_deadline)

    def _check_deadline(self) -> None:
        self._deadline_timer = None
        if self.execution is None or self._deadline is None:
            return
        if self._deadline > self.loop.time():
            self.set_deadline(self._deadline, self._on_deadline)
        else:
            self._on_deadline(self, self.execution)

    async def request(self, message: m.Message, *, fds: tuple[int, ...] = ()) -> m.Message:
        """Send a request and wait for the reply, also while code runs. Raises WorkerRequestFailed or WorkerDied."""
        connection = self.require_connection()
        future: asyncio.Future[m.Message] = self.loop.create_future()
        self.protocol.add_request(message.id)
        self._pending_requests[message.id] = future
        try:
            connection.send(message, fds)
            if self.execution is not None:
                connection.frame_socket.resume()
                connection.wake()
            reply = await future
        finally:
            self.protocol.discard_request(message.id)
            self._pending_requests.pop(message.id, None)
        if isinstance(reply, m.ErrorMessage):
            if self.cause is not None:
                raise WorkerDied(self.cause)
            raise WorkerRequestFailed(reply.exception_type, reply.exception_message)
        if type(reply) is not type(message):
            text = f"the worker answered a {type(message).__name__} with a {type(reply).__name__}"
            raise WorkerRequestFailed("ProtocolError", text)
        return reply

    def send(self, message: m.Message) -> None:
        """Send a message without waiting for a reply. A busy worker is woken to read it."""
        connection = self.require_connection()
        connection.send(message)
        if self.execution is not None:
            connection.wake()

    async def receive_general(self, message_type: type[m.Message] | None) -> m.Message:
        """Wait for a message of the general queue, of this type if given. Raises WorkerDied."""
        while True:
            message = self.general_queue.pop_oldest(message_type)
            if message is not None:
                return message
            if self.cause is not None:
                raise WorkerDied(self.cause)
            self.message_arrived.clear()
            await self.message_arrived.wait()

    cause: Cause | None = None

    def require_connection(self) -> WorkerConnection:
        """Return the connection, or raise WorkerDied."""
        if self.connection is None or self.cause is not None:
            raise WorkerDied(self.cause or Cause("start", "the worker was not started"))
        return self.connection

    # -- receiving (ConnectionListener)

    def on_message(self, message: m.AnyMessage) -> None:
        self.counts["control"] += 1
        actions = self.protocol.receive_message(message)
        if self.interceptors.stats:
            actions = self._notify_interceptors(message, actions)
        self._apply_actions(actions)

    def _notify_interceptors(
        self, message: m.AnyMessage, actions: tuple[RoutingAction, ...]
    ) -> tuple[RoutingAction, ...]:
        """Show interceptors what precedes a message, then the message. Returns the actions that remain."""
        if not actions and isinstance(message, m.AckMessage) and message.of == self.protocol.running_id:
            # They have seen the presumed acknowledgement already.
            return actions
        if actions and isinstance(actions[0], DeliverToExecution) and actions[0].message is not message:
            self._deliver_presumed_ack(actions[0])
            actions = actions[1:]
        if DRAIN_OUTPUT in actions and self.connection is not None:
            self.connection.drain_output()
        self.interceptors.notify(message)
        return actions

    def on_output(self, stream: StreamName, data: bytes) -> None:
        self.counts["bulk"] += 1
        self.counts["bytes"] += len(data)
        text = self._get_limiter(stream).feed(data)
        if text:
            self._route_output(stream, text)

    def _get_limiter(self, stream: StreamName) -> OutputLimiter:
        execution = self.execution
        if execution is not None and not self.protocol.is_streaming:
            # Output that bypassed the worker's streams can arrive before the acknowledgement.
            self._presume_ack()
        if execution is None or not self.protocol.is_streaming:
            return self._background_limiters[stream]
        if stream not in execution.limiters:
            execution.limiters[stream] = OutputLimiter(execution.output_limit)
        return execution.limiters[stream]

    def _deliver_presumed_ack(self, action: DeliverToExecution) -> None:
        self.interceptors.notify(action.message)
        self._deliver(action)

    def on_decode_error(self, problem: str) -> None:
        self._apply_actions(self.protocol.receive_invalid_frame(problem))

    def on_oversized_frame(self, size: int) -> None:
        self._apply_actions(self.protocol.receive_oversized_frame(size, self.config.frame_limit))
        if size > _FRAMING_LOST_FACTOR * self.config.frame_limit and self.connection is not None:
            self.connection.kill(Cause("protocol", f"the worker announced a message of {size} bytes"))

    def on_heavy_frame(self, header: m.MessageHeader) -> None:
        self._apply_actions(self.protocol.receive_heavy_frame(header))

    def on_exit(self, cause: Cause) -> None:
        self.cause = cause
        for timer in (self._deadline_timer, self._ack_timer):
            if timer is not None:
                timer.cancel()
        self._apply_actions(self.protocol.connection_lost(cause.kind, str(cause)))
        self.message_arrived.set()
        self._on_worker_exit(cause)

    # -- routing

    def _apply_actions(self, actions: tuple[RoutingAction, ...]) -> None:
        for action in actions:
            if type(action) is DrainOutput:
                if self.connection is not None:
                    self.connection.drain_output()
            elif isinstance(action, DeliverToExecution):
                self._deliver(action)
            elif isinstance(action, ResolveRequest):
                future = self._pending_requests.get(action.request_id)
                if future is not None and not future.done():
                    future.set_result(action.message)
            elif isinstance(action, DeliverToGeneralQueue):
                self._put_general(action.message)
            elif isinstance(action, KillWorker):
                self._kill_for_violations(action.reason)
            else:
                self._on_session_message(action.message)

    def _kill_for_violations(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.ignore_messages()
            self.connection.kill(Cause("protocol", reason))

    def _deliver(self, action: DeliverToExecution) -> None:
        execution = self.execution
        if execution is None or execution.id != action.execution_id:
            self._put_general(action.message)
            return
        if action.is_last:
            self._finish_execution(execution, action.message)
            return
        queue = execution.queue
        queue.put(action.message)
        if queue.buffered_bytes and queue.is_full and self.connection is not None:
            self.connection.pause()
            if not isinstance(action.message, m.OutputMessage) and not self._pending_requests:
                # The protocol socket itself is full of displays, and no request waits for a reply from it.
                self.connection.frame_socket.pause()

    def _finish_execution(self, execution: ActiveExecution, last_message: m.Message) -> None:
        if execution.limiters:
            self._flush_limiters(execution)
        if execution.queue.dropped and isinstance(last_message, m.ResultMessage | m.ErrorMessage):
            text = f"{execution.queue.dropped} messages were left out, because nothing read them in time"
            last_message = msgspec.structs.replace(last_message, warnings=(*last_message.warnings, text))
        execution.queue.put(last_message, last=True)
        self.execution = None
        self.protocol.finish_execution()
        if self.connection is not None and self.cause is None:
            self.connection.resume()
        execution.finish(last_message)

    def _flush_limiters(self, execution: ActiveExecution) -> None:
        for stream, limiter in execution.limiters.items():
            head, dropped, tail = limiter.finish()
            if head:
                execution.queue.put(self._make_output_message(stream, head, execution.id))
            if dropped:
                execution.queue.put(self._make_output_message(stream, tail, execution.id, dropped))

    def _route_output(self, stream: StreamName, text: str) -> None:
        execution_id = self.protocol.running_id if self.protocol.is_streaming else None
        message = self._make_output_message(stream, text, execution_id or "")
        self.interceptors.notify(message)
        self._apply_actions((self.protocol.route_output(message),))

    def _make_output_message(
        self, stream: StreamName, text: str, execution_id: str, dropped: int = 0
    ) -> m.OutputMessage:
        return m.OutputMessage(data=text, stream=stream, execution_id=execution_id, dropped=dropped)

    def _put_general(self, message: m.Message) -> None:
        self.general_queue.put(message)
        self.message_arrived.set()
