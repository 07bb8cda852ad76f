"""Agent sessions that survive crashes and stay consistent.

Public names are resolved on first use, so importing the package imports nothing heavy.
"""

from standfast.base.lazy import attach_stub

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
