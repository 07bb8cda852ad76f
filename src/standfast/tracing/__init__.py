"""Tracing: traces and spans that describe what a run did. Names are imported on first use.

Spans are passed to the processors that the program adds, and to OpenTelemetry if the program has configured it. Without
either, no span is created. standfast itself sends no traces anywhere.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
