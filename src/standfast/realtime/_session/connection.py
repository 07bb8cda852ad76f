"""The connection of a session as its parts see it: send, wait for a connection, send again after a loss.

:class:`ResendQueue` has the messages that the model has not confirmed. It does no I/O.
"""

import asyncio
from typing import Any, Protocol

from standfast.base.errors import Closed
from standfast.realtime._session.context import RealtimeLifecycleEvent, RealtimeState, SessionContext
from standfast.realtime._session.item_conversion import get_input_text, get_text
from standfast.realtime._session.resolved_agent import AgentResolver
from standfast.realtime.config import RealtimeSessionModelSettings
from standfast.realtime.errors import NotConnected
from standfast.realtime.items import InputAudio, UserMessageItem
from standfast.realtime.model import (
    RealtimeModelConfig,
    RealtimeModelSendEvent,
    RealtimeModelSendRawMessage,
    RealtimeModelSendUserInput,
)

MAX_UNCONFIRMED = 32
"""How many messages are kept for a resend, for models that never confirm a message."""
LOSS_DETECTION_TIMEOUT = 1.0
"""Seconds after a failed send within which the loss of the connection must be reported."""


class ResendQueue:
    """User messages to resend after a reconnect, and whether a requested response has not started yet."""

    def __init__(self) -> None:
        self.response_pending = False
        """A response was requested and has not started."""
        self.to_resend: list[RealtimeModelSendUserInput] = []
        """Messages lost with a connection, and messages sent after them; for the next connection, in order."""
        self._unconfirmed: list[RealtimeModelSendUserInput] = []
        """Messages sent over this connection that the model has not confirmed."""
        self._model_confirms = False
        """The model confirms messages: a model that did so once always does."""

    def mark_sent(self, message: RealtimeModelSendUserInput) -> None:
        """Record a message that is being sent and expects a response."""
        self._unconfirmed = [*self._unconfirmed[-MAX_UNCONFIRMED:], message]
        self.response_pending = True

    def withdraw(self, message: RealtimeModelSendUserInput, *, response_pending: bool) -> None:
        """Forget a message whose send failed: the sender gets the error."""
        self._unconfirmed = [other for other in self._unconfirmed if other is not message]
        self.response_pending = response_pending

    def mark_confirmed(self, item: UserMessageItem) -> None:
        """Forget the message that the model has made this item of, and the messages before it.

        An earlier message that the model has not confirmed by now was rejected.
        """
        if any(isinstance(part, InputAudio) for part in item.content):
            return
        text = get_text(item)
        for index, sent in enumerate(self._unconfirmed):
            if get_input_text(sent.user_input) == text:
                del self._unconfirmed[: index + 1]
                self._model_confirms = True
                return

    def on_response_started(self) -> None:
        """Record that the model responds."""
        self.response_pending = False
        if not self._model_confirms:  # Otherwise the remaining messages are still on their way.
            self._unconfirmed.clear()

    def on_connection_lost(self) -> None:
        """Move the unconfirmed messages to the ones to resend."""
        self.to_resend, self._unconfirmed = [*self._unconfirmed, *self.to_resend], []

    def pop_next(self) -> RealtimeModelSendUserInput:
        """Remove and return the first message to resend; it counts as sent."""
        message = self.to_resend.pop(0)
        self.mark_sent(message)
        return message


class ConnectionSupervisor(Protocol):
    """Replaces connections. It is notified by the parts that work on a connection."""

    def replace_connection(self, error: Exception) -> None:
        """Replace a connection that is up but in an unknown state."""


class SessionConnection:
    """The current connection of the model, the wait for the next one, and what is resent over it."""

    def __init__(self, ctx: SessionContext, resolver: AgentResolver, model_config: RealtimeModelConfig) -> None:
        self._ctx, self._resolver, self._model_config = ctx, resolver, model_config
        self._up, self._down = asyncio.Event(), asyncio.Event()
        self._supervisor: ConnectionSupervisor | None = None
        self.count = 0
        """The number of connections so far. It identifies the current one."""
        self.resend_queue = ResendQueue()
        self.is_restoring = False
        """Whether a new connection is being sent what the last one has lost."""

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    async def connect(self, settings: RealtimeSessionModelSettings) -> None:
        """Connect the model with these settings. The connection counts from :meth:`set_connected` on."""
        await self._ctx.model.connect({**self._model_config, "initial_model_settings": settings})

    def set_supervisor(self, supervisor: ConnectionSupervisor) -> None:
        """Register the part that replaces connections."""
        self._supervisor = supervisor

    def request_replacement(self, error: Exception) -> None:
        """Have the connection replaced, because the settings that the model has are unknown."""
        if self._supervisor is not None:
            self._supervisor.replace_connection(error)

    def set_connected(self, connected: bool) -> None:
        """Record that a connection was made or lost."""
        machine = self._ctx.state_machine
        event = RealtimeLifecycleEvent.CONNECTED if connected else RealtimeLifecycleEvent.CONNECTION_LOST
        if machine.allows(event):
            machine.fire(event)
        self.count += connected
        if not connected:
            self.resend_queue.on_connection_lost()
        (self._up if connected else self._down).set()
        (self._down if connected else self._up).clear()

    def release_waiters(self) -> None:
        """Wake every task that waits for a connection or for its loss, because the session closes."""
        self._up.set()
        self._down.set()

    async def wait_connected(self) -> None:
        """Wait for a connection. Raises ``Closed`` or ``NotConnected`` if there will be none."""
        if self._ctx.state is RealtimeState.NEW:
            raise NotConnected("the session was not entered yet: use `async with session:`")
        if self._ctx.state is RealtimeState.OPENING:
            self._resolver.check_not_resolving("the session")
        await self._up.wait()
        if not self._ctx.is_open:
            raise Closed("the session is closed")

    async def wait_lost(self) -> bool:
        """Return True if the connection turns out to be lost and the session waits for another one."""
        try:
            async with asyncio.timeout(LOSS_DETECTION_TIMEOUT):
                await self._down.wait()
        except TimeoutError:
            return False
        return self._ctx.is_open

    async def send(self, event: RealtimeModelSendEvent) -> None:
        """Send an event; after a loss, send it over the next connection."""
        while True:
            await self.wait_connected()
            try:
                return await self._ctx.model.send_event(event)
            except (ConnectionError, NotConnected):
                if not await self.wait_lost():
                    raise

    async def send_user_input(self, message: RealtimeModelSendUserInput) -> None:
        """Send a message that expects a response. If the model does not confirm it, the next connection gets it."""
        await self.wait_connected()
        queue = self.resend_queue
        if self.is_restoring and queue.to_resend:
            queue.to_resend.append(message)  # It is sent after the messages before it.
            return
        response_pending = queue.response_pending
        queue.mark_sent(message)
        try:
            await self._ctx.model.send_event(message)
        except Exception as error:
            lost = isinstance(error, ConnectionError | NotConnected) and await self.wait_lost()
            if not lost:  # After a loss, the next connection gets the message.
                queue.withdraw(message, response_pending=response_pending)
                raise

    async def send_or_drop(self, event: RealtimeModelSendEvent) -> None:
        """Send an event that is useless later: if the connection is lost, the event is dropped."""
        try:
            await self._ctx.model.send_event(event)
        except (ConnectionError, NotConnected):
            if not await self.wait_lost():
                raise

    async def send_raw(self, message_type: str, **fields: Any) -> None:
        """Send a message of the wire protocol over the connection of this moment."""
        message: Any = {"type": message_type, "other_data": fields} if fields else {"type": message_type}
        await self._ctx.model.send_event(RealtimeModelSendRawMessage(message))
