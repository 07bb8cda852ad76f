"""A client of ``standfast serve`` with the methods of a runtime. Names are imported on first use."""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
