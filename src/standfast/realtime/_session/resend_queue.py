"""The messages that the model has not confirmed, to be sent again over the next connection. Sans I/O."""

from standfast.realtime._session.item_conversion import get_input_text, get_text
from standfast.realtime.items import InputAudio, UserMessageItem
from standfast.realtime.model import RealtimeModelSendUserInput

MAX_UNCONFIRMED = 32
"""How many messages are kept for a resend, for models that never confirm a message."""


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
