"""Durable runs: by id, in one store, driven by one process at a time. Names are resolved on first use."""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
