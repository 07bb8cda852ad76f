"""The interface of realtime models, their inputs, listeners and playback trackers."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NotRequired, TypeAlias, TypedDict

from standfast.agents.types import MaybeAwaitable
from standfast.realtime.audio import PCM16, parse_audio_format
from standfast.realtime.config import (
    RealtimeAudioFormat,
    RealtimeClientMessage,
    RealtimeSessionModelSettings,
    RealtimeUserInput,
    RealtimeUserInputImage,
    RealtimeUserInputMessage,
    RealtimeUserInputText,
)
from standfast.realtime.model_events import RealtimeModelEvent, RealtimeModelToolCallEvent

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

    A ``follow_up`` is about the model's own response, such as the message of a guardrail. Its response also waits
    until the user has stopped speaking; if the model then responds to the user, that response covers the follow-up as
    well.
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

    A model reports each part that it has stopped with a :class:`RealtimeModelAudioInterruptedEvent`. The session then
    removes the words from its history that were not heard.

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


class RealtimePlaybackState(TypedDict):
    """The playback position. All fields are ``None`` while nothing plays."""

    current_item_id: str | None
    current_item_content_index: int | None
    elapsed_ms: float | None


class RealtimePlaybackTracker:
    """Tracks what the user has heard. The player reports here, and interruptions truncate accordingly.

    Without a tracker, audio counts as played at the speed of speech from the moment it was received.
    """

    def __init__(self) -> None:
        self._format = PCM16
        self._item: tuple[str, int] | None = None
        self._elapsed_ms = 0.0

    def on_play_bytes(self, item_id: str, item_content_index: int, bytes: bytes) -> None:
        """Report that these bytes were played, in the format of :meth:`set_audio_format`."""
        self.on_play_ms(item_id, item_content_index, self._format.duration_ms(len(bytes)))

    def on_play_ms(self, item_id: str, item_content_index: int, ms: float) -> None:
        """Report that further milliseconds were played."""
        if self._item != (item_id, item_content_index):
            self._item, self._elapsed_ms = (item_id, item_content_index), 0.0
        self._elapsed_ms += ms

    def on_interrupted(self) -> None:
        """Reset the position, because playback was stopped. Called by the model."""
        self._item, self._elapsed_ms = None, 0.0

    def set_audio_format(self, format: RealtimeAudioFormat) -> None:
        """Set the format of the bytes. Called by the model."""
        self._format = parse_audio_format(format) or self._format

    def get_state(self) -> RealtimePlaybackState:
        """Return the playback position. A subclass with another source may override only this method."""
        if self._item is None:
            return {"current_item_id": None, "current_item_content_index": None, "elapsed_ms": None}
        item_id, content_index = self._item
        return {
            "current_item_id": item_id,
            "current_item_content_index": content_index,
            "elapsed_ms": self._elapsed_ms,
        }


class RealtimeModelListener(ABC):
    """A listener of model events."""

    raw_server_events: bool = True
    """Whether the listener gets every raw message of the server as well. Each message is then parsed twice."""

    @abstractmethod
    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Handle an event. Events come one after the other; a slow listener delays the connection."""


class RealtimeModelConfig(TypedDict):
    """The options of a connection."""

    api_key: NotRequired[str | Callable[[], MaybeAwaitable[str]]]
    url: NotRequired[str]
    headers: NotRequired[dict[str, str]]
    """Replaces the default headers, so it must include the authorization."""
    initial_model_settings: NotRequired[RealtimeSessionModelSettings]
    playback_tracker: NotRequired[RealtimePlaybackTracker]
    call_id: NotRequired[str]
    """The call to join, instead of starting a new conversation."""


class RealtimeModel(ABC):
    """A model with a bidirectional connection."""

    was_aborted: bool = False
    """Whether the last connection was aborted, because the server did not complete the close handshake."""

    @abstractmethod
    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect. If it raises, nothing is left open."""

    @abstractmethod
    def add_listener(self, listener: RealtimeModelListener) -> None:
        """Add a listener, which gets all events from now on."""

    @abstractmethod
    def remove_listener(self, listener: RealtimeModelListener) -> None:
        """Remove a listener."""

    @abstractmethod
    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        """Send an event. Returns when it was written; a session update returns when the server has acknowledged it."""

    async def send_event_if(self, event: RealtimeModelSendEvent, send_if: Callable[[], bool]) -> bool:
        """Send the event if ``send_if()`` is true right before the write. Returns whether it was sent.

        A model that cannot check at that moment does not send.
        """
        return False

    def is_listener_task(self) -> bool:
        """Return whether the current task calls the listeners, so that it must not wait for an event of the model.

        A session checks it before it waits. A model that does not know returns False.
        """
        return False

    @abstractmethod
    async def close(self) -> None:
        """Close the connection, if there is one."""
