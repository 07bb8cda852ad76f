"""Worker sessions: isolated, persistent Python, forked in milliseconds.

Names are resolved on first use: a worker imports ``workers.wire`` only and pays for nothing else.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
