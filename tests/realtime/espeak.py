"""Real speech for tests: from the program ``espeak-ng``, or from its library if only that is installed."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

from standfast.realtime.local.speech import EspeakTTS


def make_espeak_tts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> EspeakTTS:
    if shutil.which("espeak-ng") is None:
        if importlib.util.find_spec("espeakng_loader") is None:
            pytest.skip("neither espeak-ng nor espeakng-loader is installed")
        program = folder / "espeak-ng"
        program.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "espeak_program.py").read_text())
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return EspeakTTS()


async def speak_with_espeak(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    words = await make_espeak_tts(folder, monkeypatch).synthesize(text)
    return b"".join(word.audio for word in words)
