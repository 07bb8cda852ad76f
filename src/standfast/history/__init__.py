"""Histories of conversations. Names are resolved on first use, so that no backend is imported before it is needed."""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
