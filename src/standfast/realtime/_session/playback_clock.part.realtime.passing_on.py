"""What was passed on to whoever plays it, and from when on it can have been heard."""

import asyncio

from holdfast.realtime.audio import parse_audio_format
from holdfast.realtime.config import RealtimeAudioFormat
from holdfast.realtime.events import RealtimeAudio
from holdfast.realtime.latest import BoundedDict
from holdfast.realtime.model import RealtimePlaybackState
from holdfast.realtime.playback import MAX_PARTS, AudioTruncation, PartPlaybackTracker, Playback


class ReleasedAudioTracker(PartPlaybackTracker):
    """Takes audio for heard at the speed of speech from the moment at which it was passed on.

    For sessions that hold audio back: by the time at which they received it, it would count as heard too early.
    """

    def __init__(self) -> None:
        super().__init__()
        self._playback = Playback()
        self._released_seconds: BoundedDict[tuple[str, int], float] = BoundedDict(MAX_PARTS)

    def add_audio(self, audio: RealtimeAudio) -> None:
        length, response_id = len(audio.audio.data), audio.audio.response_id
        self._playback.add_audio(audio.item_id, audio.content_index, response_id, length, self._now())
        place = (audio.item_id, audio.content_index)
        self._released_seconds[place] = (
            self._released_seconds.get(place, 0.0) + self._playback.format.duration_ms(length) / 1000
        )

    def stop_response(self, response_id: str) -> None:
        """Nothing more of a response is played; what was passed on behind it plays from now on."""
        self._discard(self._playback.stop(self._now(), response_id=response_id))

    def on_interrupted(self) -> None:
        super().on_interrupted()
        self._discard(self._playback.stop(self._now()))

    def get_heard_seconds(self, item_id: str, content_index: int) -> float:
        passed_on = self._released_seconds.get((item_id, content_index), 0.0)
        return max(0.0, passed_on - self._playback.get_remaining_seconds(item_id, content_index, self._now()))

    def set_audio_format(self, format: RealtimeAudioFormat) -> None:
        super().set_audio_format(format)
        self._playback.set_format(parse_audio_format(format) or self._playback.format)

    def get_state(self) -> RealtimePlaybackState:
        part = self._playback.get_current_part(self._now())
        if part is None:
            return super().get_state()
        return {
            "current_item_id": part.item_id,
            "current_item_content_index": part.content_index,
            "elapsed_ms": part.played_seconds * 1000,
        }

    def _discard(self, cuts: list[AudioTruncation]) -> None:
        """What was cut was not heard although it was passed on."""
        for cut in cuts:
            self._released_seconds[cut.item_id, cut.content_index] = cut.heard_ms / 1000

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
