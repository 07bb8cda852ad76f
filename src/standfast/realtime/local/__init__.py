"""The server side of the realtime protocol inside the program: an engine, and what thinks, hears and speaks for it.

Names are resolved on first use.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
