"""Tracing: what a run did, as a tree of spans. Names are resolved on first use.

Nothing leaves the process by itself: spans go to the processors that the program adds and to OpenTelemetry when the
program has configured it. When neither is there, no span is made.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
