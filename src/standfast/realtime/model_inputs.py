"""The inputs of a realtime model."""

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

# The inputs of a model and of a session have the same types.
RealtimeModelRawClientMessage: TypeAlias = RealtimeClientMessage
"""Any message of the wire protocol: its type, and its other fields in ``other_data``."""
RealtimeModelInputTextContent: TypeAlias = RealtimeUserInputText
"""A text part of a user message."""
RealtimeModelInputImageContent: TypeAlias = RealtimeUserInputImage
"""An image part of a user message."""
RealtimeModelUserInputMessage: TypeAlias = RealtimeUserInputMessage
"""A user message in parts."""
RealtimeModelUserInput: TypeAlias = RealtimeUserInput
"""A user message: a text, or a message in parts."""


@dataclass
class RealtimeModelSendRawMessage:
    """Send a message of the wire protocol. A ``response.create`` waits while another response is active.

    With ``conversation: none`` the response is out of band: it does not wait, its messages arrive as raw messages
    only, it is not played or added to the history, and its tool calls are not made.
    """

    message: RealtimeModelRawClientMessage


@dataclass
class RealtimeModelSendUserInput:
    """Add a user message at once, and request a response when none is active.

    A ``follow_up`` comments on what the model has said. Its response also waits until the user has stopped speaking;
    if the model then responds to the user, that response covers the follow-up as well.
    """

    user_input: RealtimeModelUserInput
    follow_up: bool = field(default=False, compare=False)


@dataclass
class RealtimeModelSendAudio:
    """Append audio to the input buffer. ``commit`` turns the buffer into an item, without requesting a response."""

    audio: bytes
    commit: bool = False


@dataclass
class RealtimeModelSendToolOutput:
    """Send the output of a call at once and, with ``start_response``, request a response when none is active.

    While the user speaks, the request waits; if the model then responds to the user, that response covers the output
    as well.
    """

    tool_call: RealtimeModelToolCallEvent
    output: str
    start_response: bool


@dataclass
class RealtimeModelSendInterrupt:
    """Stop the model: truncate the audio that was not heard, cancel the response, emit no more of its audio.

    ``response_id`` restricts it to that response. ``cancel_response_only`` does not stop playback and needs a
    ``response_id``. ``playback_only`` does not cancel the response and excludes both cancel options; it may be sent
    between two connections, while audio of the last one plays.
    """

    force_response_cancel: bool = False
    response_id: str | None = None
    cancel_response_only: bool = False
    playback_only: bool = False

    def __post_init__(self) -> None:
        if self.playback_only and (self.force_response_cancel or self.cancel_response_only):
            raise ValueError("playback_only cannot be combined with force_response_cancel or cancel_response_only")
        if self.cancel_response_only and self.response_id is None:
            raise ValueError("cancel_response_only needs a response_id")


@dataclass
class RealtimeModelSendSessionUpdate:
    """Change the settings of the session."""

    session_settings: RealtimeSessionModelSettings


RealtimeModelSendEvent: TypeAlias = (
    RealtimeModelSendRawMessage
    | RealtimeModelSendUserInput
    | RealtimeModelSendAudio
    | RealtimeModelSendToolOutput
    | RealtimeModelSendInterrupt
    | RealtimeModelSendSessionUpdate
)
