"""The ends of conversations, for objects that keep something for each of them in this process."""

from typing import Protocol
from weakref import WeakSet


class ConversationListener(Protocol):
    """Keeps something for conversations."""

    def forget_conversation(self, key: str) -> None:
        """Drop what is kept for the conversation: its session was deleted or cleared. Any thread may call this."""


_listeners: WeakSet[ConversationListener] = WeakSet()


def add_conversation_listener(listener: ConversationListener) -> None:
    """Tell ``listener`` of conversations that end, as long as it exists."""
    _listeners.add(listener)


def forget_conversation(key: str) -> None:
    """Tell the listeners that the session of a conversation was deleted or cleared."""
    for listener in list(_listeners):
        listener.forget_conversation(key)
