"""Workers on many machines: a pool whose workers run on the nodes of a Ray cluster.

Ray is imported when a pool starts. PostgreSQL stays the truth: what a node had is restored from the store on another.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
