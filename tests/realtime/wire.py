"""The former place of ``factories.realtime_protocol.speech``."""

from factories.realtime_protocol import make_speech

__all__ = ["make_speech"]
