"""Speech to text: the protocol of transcribers and a scripted one for tests. No speech recognition is built in."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class Transcriber(Protocol):
    """Transcribes speech."""

    async def transcribe(self, audio: bytes) -> str:
        """Return the words in the audio, 16-bit mono PCM at 24 kHz.

        An exception fails the transcription, not the session.
        """


class ScriptedTranscriber:
    """Returns the next text of a script for each audio, whatever it contains, and ``default`` at its end."""

    def __init__(self, texts: Iterable[str] = (), *, default: str = "") -> None:
        self._texts = deque(texts)
        self._default = default

    async def transcribe(self, audio: bytes) -> str:
        return self._texts.popleft() if self._texts else self._default
