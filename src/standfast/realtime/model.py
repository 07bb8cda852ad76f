"""What a realtime model is: a connection that is told things and tells things."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NotRequired, TypedDict

from standfast.agents.types import MaybeAwaitable
from standfast.realtime.audio import PCM16, parse_audio_format
from standfast.realtime.config import RealtimeAudioFormat, RealtimeSessionModelSettings
from standfast.realtime.model_events import RealtimeModelEvent
from standfast.realtime.model_inputs import RealtimeModelSendEvent


class RealtimePlaybackState(TypedDict):
    """What is playing and how much of it was heard. All ``None`` when nothing is."""

    current_item_id: str | None
    current_item_content_index: int | None
    elapsed_ms: float | None


class RealtimePlaybackTracker:
    """What the user has really heard. Whoever plays the audio reports here; an interruption cuts accordingly.

    Without one, everything is taken for heard at the speed of speech from the moment it was received.
    """

    def __init__(self) -> None:
        self._format = PCM16
        self._item: tuple[str, int] | None = None
        self._elapsed_ms = 0.0

    def on_play_bytes(self, item_id: str, item_content_index: int, bytes: bytes) -> None:
        """These bytes were played, in the format of :meth:`set_audio_format`."""
        self.on_play_ms(item_id, item_content_index, self._format.duration_ms(len(bytes)))

    def on_play_ms(self, item_id: str, item_content_index: int, ms: float) -> None:
        """So many further milliseconds were played."""
        if self._item != (item_id, item_content_index):
            self._item, self._elapsed_ms = (item_id, item_content_index), 0.0
        self._elapsed_ms += ms

    def on_interrupted(self) -> None:
        """Playback was stopped; called by the model."""
        self._item, self._elapsed_ms = None, 0.0

    def set_audio_format(self, format: RealtimeAudioFormat) -> None:
        """What the bytes are; called by the model when it knows."""
        self._format = parse_audio_format(format) or self._format

    def get_state(self) -> RealtimePlaybackState:
        """What plays now, and how much of it was played. A tracker that knows better may override just this."""
        if self._item is None:
            return {"current_item_id": None, "current_item_content_index": None, "elapsed_ms": None}
        item_id, content_index = self._item
        return {
            "current_item_id": item_id,
            "current_item_content_index": content_index,
            "elapsed_ms": self._elapsed_ms,
        }


class RealtimeModelListener(ABC):
    """Whoever wants to know what a model tells."""

    raw_server_events: bool = True
    """Whether every message of the server is wanted as it came, too. It costs a second reading of each."""

    @abstractmethod
    async def on_event(self, event: RealtimeModelEvent) -> None:
        """Called with one event after the other. A slow listener holds up the connection."""


class RealtimeModelConfig(TypedDict):
    """How to connect."""

    api_key: NotRequired[str | Callable[[], MaybeAwaitable[str]]]
    url: NotRequired[str]
    headers: NotRequired[dict[str, str]]
    """Sent instead of the usual ones, so authorization must be among them."""
    initial_model_settings: NotRequired[RealtimeSessionModelSettings]
    playback_tracker: NotRequired[RealtimePlaybackTracker]
    call_id: NotRequired[str]
    """Join this call instead of starting a conversation."""


class RealtimeModel(ABC):
    """A model that is talked to while it talks."""

    was_aborted: bool = False
    """Whether the connection that was closed last had to be cut, because the other side did not say goodbye."""

    @abstractmethod
    async def connect(self, options: RealtimeModelConfig) -> None:
        """Connect. When it raises, nothing is left open."""

    @abstractmethod
    def add_listener(self, listener: RealtimeModelListener) -> None:
        """From now on, tell this one everything, too."""

    @abstractmethod
    def remove_listener(self, listener: RealtimeModelListener) -> None:
        """Tell this one nothing more."""

    @abstractmethod
    async def send_event(self, event: RealtimeModelSendEvent) -> None:
        """Tell the model something. New settings are waited for; everything else returns when it was written."""

    async def send_event_if(self, event: RealtimeModelSendEvent, send_if: Callable[[], bool]) -> bool:
        """Send if ``send_if()`` still holds at the moment at which nothing can come between; tells whether it did.

        A model that cannot check at that moment does not send.
        """
        return False

    def is_listener_task(self) -> bool:
        """Whether the current task is the one that tells listeners: what it waits for, nobody can be told.

        A session asks before it waits for the model. A model that does not know says no.
        """
        return False

    @abstractmethod
    async def close(self) -> None:
        """End the connection. Nothing happens if there is none."""
