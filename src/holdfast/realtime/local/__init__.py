"""The server side of the realtime protocol inside the program: an engine, and what thinks, hears and speaks for it.

Names are resolved on first use.
"""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "brain": ["Brain", "Call", "Pause", "Question", "Say", "ScriptEnded", "ScriptedBrain"],
    "engine": ["Engine"],
    "model": ["LocalRealtimeModel"],
    "model_brain": ["ModelBrain"],
    "speech": ["EspeakVoice", "ToneVoice", "Voice", "VoiceFailed", "Word", "best_voice"],
    "transcription": ["ScriptedTranscriber", "Transcriber"],
    "vad": ["DetectorFactory", "EnergyDetector", "SileroDetector", "VoiceDetector", "best_detector"],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
