"""What a realtime model is told."""

from dataclasses import dataclass, field
from typing import TypeAlias

from standfast.realtime.config import (
    RealtimeClientMessage,
    RealtimeSessionModelSettings,
    RealtimeUserInput,
    RealtimeUserInputImage,
    RealtimeUserInputMessage,
    RealtimeUserInputText,
)
from standfast.realtime.model_events import RealtimeModelToolCallEvent

# A model is told what a program tells its session, in the same words.
RealtimeModelRawClientMessage: TypeAlias = RealtimeClientMessage
"""Any message of the wire protocol: its type, and its other parts beside it."""
RealtimeModelInputTextContent: TypeAlias = RealtimeUserInputText
"""Text of the user."""
RealtimeModelInputImageContent: TypeAlias = RealtimeUserInputImage
"""A picture of the user."""
RealtimeModelUserInputMessage: TypeAlias = RealtimeUserInputMessage
"""A message of the user in parts."""
RealtimeModelUserInput: TypeAlias = RealtimeUserInput
"""A message of the user: a text, or parts."""


@dataclass
class RealtimeModelSendRawMessage:
    """Say this on the wire. A ``response.create`` waits for its turn like every other.

    One with ``conversation: none`` is no part of the conversation and waits for nothing. What is answered is told in
    raw messages only: it is not spoken, not remembered, and its calls are not made.
    """

    message: RealtimeModelRawClientMessage


@dataclass
class RealtimeModelSendUserInput:
    """Add a message of the user at once, and ask for a response when none is active.

    A ``follow_up`` is nobody's question, but a word about what the model has said: the response to it also waits
    until the user does not speak any more, and a response that the model then gives to the user is one to it, too.
    """

    user_input: RealtimeModelUserInput
    follow_up: bool = field(default=False, compare=False)


@dataclass
class RealtimeModelSendAudio:
    """Add to the input buffer; ``commit`` makes what it holds an item, without asking for a response."""

    audio: bytes
    commit: bool = False


@dataclass
class RealtimeModelSendToolOutput:
    """Answer a call at once, and if ``start_response`` ask for a response when none is active.

    While the user speaks that waits, and a response that the model then gives to the user is one to this, too.
    """

    tool_call: RealtimeModelToolCallEvent
    output: str
    start_response: bool


@dataclass
class RealtimeModelSendInterrupt:
    """Stop the model: cut what was not heard yet, cancel the response, emit no more of its audio.

    ``response_id`` restricts it to that response. ``cancel_response_only`` leaves playback alone and needs
    a ``response_id``; ``playback_only`` leaves the response alone and excludes both ways of cancelling. It is possible
    between two connections, too: what plays then came over the last one.
    """

    force_response_cancel: bool = False
    response_id: str | None = None
    cancel_response_only: bool = False
    playback_only: bool = False

    def __post_init__(self) -> None:
        if self.playback_only and (self.force_response_cancel or self.cancel_response_only):
            raise ValueError("playback_only leaves the response alone: it excludes the ways of cancelling it")
        if self.cancel_response_only and self.response_id is None:
            raise ValueError("cancel_response_only needs the response_id that it is about")


@dataclass
class RealtimeModelSendSessionUpdate:
    """Change the settings."""

    session_settings: RealtimeSessionModelSettings


RealtimeModelSendEvent: TypeAlias = (
    RealtimeModelSendRawMessage
    | RealtimeModelSendUserInput
    | RealtimeModelSendAudio
    | RealtimeModelSendToolOutput
    | RealtimeModelSendInterrupt
    | RealtimeModelSendSessionUpdate
)
