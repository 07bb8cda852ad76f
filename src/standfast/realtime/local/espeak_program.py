"""``espeak-ng --stdout --stdin``, implemented with the library in the package espeakng-loader.

:class:`~standfast.realtime.local.EspeakTTS` runs this file as a process of its own, which imports nothing of standfast.
"""

import argparse
import ctypes
import sys
import wave
from typing import Any

SYNCHRONOUS, UTF8, RATE = 2, 1, 1


def synthesize(text: bytes, *, language: str, words_per_minute: int) -> tuple[bytes, int]:
    """Return the samples, 16-bit mono, and their rate."""
    import espeakng_loader  # type: ignore[import-untyped, unused-ignore]

    library = ctypes.CDLL(espeakng_loader.get_library_path())
    audio = bytearray()

    def collect(samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            audio.extend(ctypes.string_at(samples, count * 2))
        return 0

    prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    callback = prototype(collect)  # kept in a variable: the library calls it later
    rate = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(language.encode())
    library.espeak_SetParameter(RATE, words_per_minute, 0)
    text += b"\0"
    library.espeak_Synth(text, len(text), 0, 0, 0, UTF8, None, None)
    library.espeak_Synchronize()
    return bytes(audio), rate


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stdout", action="store_true")
    parser.add_argument("--stdin", action="store_true")
    parser.add_argument("-v", default="en")
    parser.add_argument("-s", type=int, default=175)
    options = parser.parse_args()
    audio, rate = synthesize(sys.stdin.buffer.read(), language=options.v, words_per_minute=options.s)
    with wave.open(sys.stdout.buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframesraw(audio)


if __name__ == "__main__":
    main()
