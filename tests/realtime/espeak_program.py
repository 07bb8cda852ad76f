"""``espeak-ng --stdout --stdin``, implemented with the library in the package espeakng-loader."""

import argparse
import ctypes
import sys
import wave

import espeakng_loader

parser = argparse.ArgumentParser()
parser.add_argument("--stdout", action="store_true")
parser.add_argument("--stdin", action="store_true")
parser.add_argument("-v")
parser.add_argument("-s", type=int)
options = parser.parse_args()

library = ctypes.CDLL(espeakng_loader.get_library_path())
audio = bytearray()


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
def collect(samples, count, events):
    if samples and count > 0:
        audio.extend(ctypes.string_at(samples, count * 2))
    return 0


SYNCHRONOUS, UTF8, RATE = 2, 1, 1
rate = library.espeak_Initialize(SYNCHRONOUS, 0, espeakng_loader.get_data_path().encode(), 0)
library.espeak_SetSynthCallback(collect)
library.espeak_SetVoiceByName(options.v.encode())
library.espeak_SetParameter(RATE, options.s, 0)
text = sys.stdin.buffer.read() + b"\0"
library.espeak_Synth(text, len(text), 0, 0, 0, UTF8, None, None)
library.espeak_Synchronize()
with wave.open(sys.stdout.buffer, "wb") as file:
    file.setnchannels(1)
    file.setsampwidth(2)
    file.setframerate(rate)
    file.writeframesraw(bytes(audio))
