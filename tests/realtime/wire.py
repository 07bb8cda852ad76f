"""The former place of ``factories.realtime_protocol.speech``."""

from factories.realtime_protocol import speech

__all__ = ["speech"]
