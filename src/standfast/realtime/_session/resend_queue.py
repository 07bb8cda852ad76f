"""What a connection must not take along when it is lost: what the user wrote, and the answer that somebody waits for.

No I/O: it is told what happened and knows what the next connection has to be told.
"""

from standfast.realtime._session.item_conversion import get_input_text, get_text
from standfast.realtime.items import InputAudio, UserMessageItem
from standfast.realtime.model_inputs import RealtimeModelSendUserInput

MAX_UNCONFIRMED = 32
"""How many messages are kept to be said again, for models that never confirm one."""


class ResendQueue:
    """Messages in the order in which they were said, and whether the model is to answer anything."""

    def __init__(self) -> None:
        self.response_pending = False
        """The model is to answer, and has not begun to."""
        self.to_resend: list[RealtimeModelSendUserInput] = []
        """Messages that went with a connection, and those said behind them: the next one is to be told."""
        self._unconfirmed: list[RealtimeModelSendUserInput] = []
        """Messages that this connection was told and that the model has not confirmed."""
        self._model_confirms = False
        """The model tells that it knows a message: one that did it once does it always."""

    def mark_sent(self, message: RealtimeModelSendUserInput) -> None:
        """The connection is being told a message that is to be answered."""
        self._unconfirmed = [*self._unconfirmed[-MAX_UNCONFIRMED:], message]
        self.response_pending = True

    def withdraw(self, message: RealtimeModelSendUserInput, *, response_pending: bool) -> None:
        """It could not be told, and whoever wanted to knows."""
        self._unconfirmed = [other for other in self._unconfirmed if other is not message]
        self.response_pending = response_pending

    def mark_confirmed(self, item: UserMessageItem) -> None:
        """The model knows a message of the user, so the next connection need not be told.

        Nor those before it: what it does not know of them by now it has refused.
        """
        if any(isinstance(part, InputAudio) for part in item.content):
            return
        words = get_text(item)
        for place, sent in enumerate(self._unconfirmed):
            if get_input_text(sent.user_input) == words:
                del self._unconfirmed[: place + 1]
                self._model_confirms = True
                return

    def on_response_started(self) -> None:
        """The model has begun to answer."""
        self.response_pending = False
        if not self._model_confirms:  # Otherwise those that are left are on their way yet.
            self._unconfirmed.clear()

    def on_connection_lost(self) -> None:
        """The connection is gone."""
        self.to_resend, self._unconfirmed = [*self._unconfirmed, *self.to_resend], []

    def pop_next(self) -> RealtimeModelSendUserInput:
        """The first message that the next connection is told now."""
        message = self.to_resend.pop(0)
        self.mark_sent(message)
        return message
