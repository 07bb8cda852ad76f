"""Recognisers: audio in, text out. None is built in; a program plugs in its own, a test plays a script."""

from collections import deque
from collections.abc import Iterable
from typing import Protocol


class Transcriber(Protocol):
    """Understands speech."""

    async def transcribe(self, audio: bytes) -> str:
        """What is said in this audio: 16 bits mono at 24 kHz. Raising fails the transcription, not the session."""


class ScriptedTranscriber:
    """Hears the next text of a script in every piece of audio, whatever is in it, and nothing when it is over."""

    def __init__(self, texts: Iterable[str] = (), *, default: str = "") -> None:
        self._texts = deque(texts)
        self._default = default

    async def transcribe(self, audio: bytes) -> str:
        return self._texts.popleft() if self._texts else self._default
