"""Moved to ``factories.workers``; this module goes with its last import."""

from factories.workers import wait_until as until

__all__ = ["until"]
