"""What a realtime model is told."""

from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from holdfast.realtime.config import RealtimeSessionModelSettings
from holdfast.realtime.model_events import RealtimeModelToolCallEvent


class RealtimeModelRawClientMessage(TypedDict):
    """Any message of the wire protocol: its type, and its other parts beside it."""

    type: str
    other_data: NotRequired[dict[str, Any]]


class RealtimeModelInputTextContent(TypedDict):
    """Text of the user."""

    type: Literal["input_text"]
    text: str


class RealtimeModelInputImageContent(TypedDict, total=False):
    """A picture of the user."""

    type: Literal["input_image"]
    image_url: str
    detail: NotRequired[str]


class RealtimeModelUserInputMessage(TypedDict):
    """A message of the user in parts."""

    type: Literal["message"]
    role: Literal["user"]
    content: list[RealtimeModelInputTextContent | RealtimeModelInputImageContent]


RealtimeModelUserInput: TypeAlias = str | RealtimeModelUserInputMessage


@dataclass
class RealtimeModelSendRawMessage:
    """Say this on the wire. A ``response.create`` waits for its turn like every other.

    One with ``conversation: none`` is no part of the conversation and waits for nothing. What is answered is told in
    raw messages only: it is not spoken, not remembered, and its calls are not made.
    """

    message: RealtimeModelRawClientMessage


@dataclass
class RealtimeModelSendUserInput:
    """Add a message of the user at once, and ask for a response when none is active."""

    user_input: RealtimeModelUserInput


@dataclass
class RealtimeModelSendAudio:
    """Add to the input buffer; ``commit`` makes what it holds an item, without asking for a response."""

    audio: bytes
    commit: bool = False


@dataclass
class RealtimeModelSendToolOutput:
    """Answer a call at once, and ask for a response when none is active if ``start_response``."""

    tool_call: RealtimeModelToolCallEvent
    output: str
    start_response: bool


@dataclass
class RealtimeModelSendInterrupt:
    """Stop the model: cut what was not heard yet, cancel the response, emit no more of its audio.

    ``response_id`` restricts it to that response. ``cancel_response_only`` leaves playback alone and needs
    a ``response_id``; ``playback_only`` leaves the response alone and excludes both ways of cancelling.
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
