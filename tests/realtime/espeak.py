"""Real speech for tests: from the program ``espeak-ng``, or from its library if only that is installed."""

import pytest

from standfast.realtime.local.speech import EspeakTTS, TextToSpeechFailed


def make_espeak_tts() -> EspeakTTS:
    try:
        return EspeakTTS()
    except TextToSpeechFailed as problem:
        pytest.skip(str(problem))


async def speak_with_espeak(text: str) -> bytes:
    return b"".join(word.audio for word in await make_espeak_tts().synthesize(text))
