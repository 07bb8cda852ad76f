"""Durable agent runs, approvals, session memory, realtime voice and sandboxed Python workers on one store.

Public names are imported on first use, so that importing the package is cheap.
"""

from standfast.base.lazy import attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
