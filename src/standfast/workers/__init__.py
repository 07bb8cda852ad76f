"""Worker sessions: sandboxed, persistent Python processes that start in milliseconds.

Public names are imported on first use, so that a worker process loads ``workers.wire`` and ``workers.child`` only.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
