"""The clock of heard audio: how many milliseconds of the model's audio were received, released and heard.

Every part of a session asks the :class:`PlaybackClock`; no other one counts audio or estimates when it has played.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable

from standfast.base.collections import BoundedDict
from standfast.realtime._session.context import SessionContext
from standfast.realtime._session.playback import (
    MAX_PARTS,
    AudioTruncation,
    PartPlaybackTracker,
    Playback,
    read_tracker_position,
)
from standfast.realtime._session.responses import ResponseRegistry, TrackedResponse
from standfast.realtime.audio import PCM16, AudioFormat, parse_audio_format
from standfast.realtime.config import RealtimeAudioFormat
from standfast.realtime.events import RealtimeAudio
from standfast.realtime.model import RealtimePlaybackState, RealtimePlaybackTracker

MAX_PLAYER_LAG = 60.0
"""Seconds by which a player may be late. Audio that it has not reported by then counts as heard."""
FINALITY_DELAY = 2.0
"""Seconds after the end of a response until it can no longer be truncated, even by a server that plays it itself."""
ROUNDING_TOLERANCE_MS = 100.0
POLL_INTERVAL = 1.0


class PlaybackClock:
    """Durations and playback of the audio of one session.

    Responses play one after the other at the speed of speech, from the moment at which they are released. A tracker of
    the program that reports the position of its player takes precedence. If the session holds audio back and there is
    no such tracker, the model gets ``released_tracker``: by the time of receipt, audio would count as heard too early.
    """

    def __init__(self, tracker: RealtimePlaybackTracker | None = None, *, holds_back_audio: bool = False) -> None:
        self._tracker = tracker
        self._released = ReleasedAudioTracker()
        self.released_tracker = self._released if holds_back_audio and tracker is None else None
        self._bytes_per_ms = PCM16.bytes_per_ms
        self._received_ms: defaultdict[tuple[str, int], float] = defaultdict(float)
        self._ends_at = self._stopped_at = 0.0

    def set_format(self, format: AudioFormat | None) -> None:
        """Set the format of the audio that arrives from now on; an unknown format changes nothing."""
        if format is not None:
            self._bytes_per_ms = format.bytes_per_ms
            self._released.set_audio_format(format.as_wire())

    def receive(self, item_id: str, content_index: int, byte_count: int) -> float:
        """Count audio that has arrived. Returns its duration in milliseconds."""
        duration_ms = byte_count / self._bytes_per_ms
        self._received_ms[item_id, content_index] += duration_ms
        return duration_ms

    def has_received(self, item_id: str, content_index: int) -> bool:
        return (item_id, content_index) in self._received_ms

    def get_received_ms(self, item_id: str, content_index: int) -> float:
        return self._received_ms.get((item_id, content_index), 0.0)

    def get_released_ms(self, response: TrackedResponse, item_id: str, content_index: int) -> float:
        """Return how many milliseconds of a part of the response were passed to the program."""
        return response.released_ms.get((item_id, content_index), 0.0)

    def get_heard_ms(self, item_id: str, content_index: int) -> int | None:
        """Return how much of a part was heard, for models that do not report it; ``None`` without audio of it."""
        if not self.has_received(item_id, content_index):
            return None
        if self._tracker is not None:
            playing_id, playing_index, elapsed_ms = read_tracker_position(self._tracker)
            if (playing_id, playing_index) == (item_id, content_index):
                return max(0, int(elapsed_ms))
        return int(self._released.get_heard_seconds(item_id, content_index) * 1000 + 1e-6)

    def release(self, response: TrackedResponse, audio: RealtimeAudio, duration_ms: float) -> None:
        """Count audio that is passed to the program, and schedule its playback."""
        now, key = asyncio.get_running_loop().time(), (audio.item_id, audio.content_index)
        response.released_ms[key] = response.released_ms.get(key, 0.0) + duration_ms
        self._released.add_audio(audio, duration_ms, now)
        begins_at = self._ends_at if self._ends_at > now else now
        self._ends_at = response.playback_ends_at = begins_at + duration_ms / 1000

    def stop(self, response: TrackedResponse, responses: Iterable[TrackedResponse]) -> None:
        """Stop a response; the other responses keep their places."""
        self._released.stop_response(response.id)
        response.playback_ends_at = self._stopped_at = _now()
        self._ends_at = max(other.playback_ends_at for other in (response, *responses))

    def forget(self, item_id: str, content_indexes: Iterable[int]) -> None:
        """Drop the durations of an item that was deleted."""
        for index in content_indexes:
            self._received_ms.pop((item_id, index), None)

    def has_played_out(self, response: TrackedResponse) -> bool:
        """Return whether all released audio of a response has had the time to play."""
        return response.playback_ends_at <= _now()

    def is_final(self, response: TrackedResponse) -> bool:
        """Return whether audio of the response was played and can no longer be truncated."""
        return response.playback_ends_at > 0 and response.playback_ends_at + FINALITY_DELAY <= _now()

    def is_still_playing(
        self, response: TrackedResponse, item_id: str, end: tuple[int, float], *, later_item_ids: Collection[str]
    ) -> bool:
        """Return whether the program's tracker has not reached the end of an item: its last part and its duration."""
        if self._tracker is None or response.playback_ends_at + MAX_PLAYER_LAG <= _now():
            return False
        playing_id, content_index, elapsed_ms = read_tracker_position(self._tracker)
        if playing_id is None:  # Nothing has played yet, or nothing since the last stop.
            return response.playback_ends_at > self._stopped_at or _now() < self._stopped_at + FINALITY_DELAY
        if playing_id in later_item_ids:
            return False
        return playing_id != item_id or (content_index, elapsed_ms + ROUNDING_TOLERANCE_MS) < end

    @property
    def next_check_delay(self) -> float | None:
        """The seconds until one of the answers above may change; ``None`` if none will."""
        now = _now()
        for due in (self._ends_at, self._ends_at + FINALITY_DELAY):
            if due > now:
                return due - now
        return POLL_INTERVAL if self._tracker is not None and self._ends_at + MAX_PLAYER_LAG > now else None


class AudioOutput:
    """Passes audio to the program and stops it again."""

    def __init__(self, ctx: SessionContext, clock: PlaybackClock, responses: ResponseRegistry) -> None:
        self._ctx, self._clock, self._responses = ctx, clock, responses

    def play(self, response: TrackedResponse, audio: RealtimeAudio, duration_ms: float) -> None:
        """Emit audio for the program to play."""
        response.produced_output = True
        if response.awaiting_first_audio:
            response.awaiting_first_audio = False
            since = response.started_at if response.requested_at is None else response.requested_at
            self._ctx.record_metric("time_to_first_audio", (self._ctx.now() - since) * 1000, response.id)
        self._ctx.broadcast.put_droppable(audio, len(audio.audio.data))
        self._clock.release(response, audio, duration_ms)

    def stop(self, response: TrackedResponse) -> None:
        """Play no more of a response."""
        response.muted = True
        self._clock.stop(response, self._responses.by_id.values())


class ReleasedAudioTracker(PartPlaybackTracker):
    """A playback tracker for sessions that hold audio back: audio plays from the moment of its release."""

    def __init__(self) -> None:
        super().__init__()
        self._playback = Playback()
        self._audible_seconds: BoundedDict[tuple[str, int], float] = BoundedDict(MAX_PARTS)
        """The seconds of each part that were released and not cut off afterwards."""
        self._latest: RealtimeAudio | None = None
        """The first audio of those that are added together."""
        self._latest_at = self._plays_until = self._more_seconds = 0.0
        self._more_bytes = 0

    def add_audio(self, audio: RealtimeAudio, duration_ms: float, now: float) -> None:
        """Play audio that was released now.

        When it was released makes no difference while earlier audio of its part plays: such audio is added together.
        """
        latest = self._latest
        if (
            latest is not None
            and now < self._plays_until
            and audio.item_id == latest.item_id
            and audio.content_index == latest.content_index
        ):
            seconds = duration_ms / 1000
            self._more_bytes += len(audio.audio.data)
            self._more_seconds += seconds
            self._plays_until += seconds
            return
        self._add_more()
        self._add(audio, len(audio.audio.data), duration_ms / 1000, now)
        self._latest, self._latest_at = audio, now
        self._plays_until = now + self._playback.remaining_seconds

    def _add(self, audio: RealtimeAudio, byte_count: int, seconds: float, now: float) -> None:
        key = (audio.item_id, audio.content_index)
        self._playback.add_audio(*key, audio.audio.response_id, byte_count, now)
        self._audible_seconds[key] = self._audible_seconds.get(key, 0.0) + seconds

    def _add_more(self) -> None:
        """Add what was added together, before the playback is used in any other way."""
        if self._latest is not None and self._more_bytes:
            self._add(self._latest, self._more_bytes, self._more_seconds, self._latest_at)
        self._latest, self._more_bytes, self._more_seconds = None, 0, 0.0

    def stop_response(self, response_id: str) -> None:
        """Stop a response; audio that was released after it plays from now on."""
        self._add_more()
        self._discard(self._playback.stop(_now(), response_id=response_id))

    def on_interrupted(self) -> None:
        super().on_interrupted()
        self._add_more()
        self._discard(self._playback.stop(_now()))

    def get_heard_seconds(self, item_id: str, content_index: int) -> float:
        self._add_more()
        audible = self._audible_seconds.get((item_id, content_index), 0.0)
        return max(0.0, audible - self._playback.get_remaining_seconds(item_id, content_index, _now()))

    def set_audio_format(self, format: RealtimeAudioFormat) -> None:
        super().set_audio_format(format)
        self._add_more()
        self._playback.set_format(parse_audio_format(format) or self._playback.format)

    def get_state(self) -> RealtimePlaybackState:
        self._add_more()
        part = self._playback.get_current_part(_now())
        if part is None:
            return super().get_state()
        return {
            "current_item_id": part.item_id,
            "current_item_content_index": part.content_index,
            "elapsed_ms": part.played_seconds * 1000,
        }

    def _discard(self, truncations: list[AudioTruncation]) -> None:
        for cut in truncations:
            self._audible_seconds[cut.item_id, cut.content_index] = cut.heard_ms / 1000


def _now() -> float:
    return asyncio.get_running_loop().time()
