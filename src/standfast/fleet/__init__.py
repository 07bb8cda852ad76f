"""Workers on many machines: a pool whose workers run on the nodes of a Ray cluster.

Ray is imported when a pool starts. State is kept in PostgreSQL only: another node restores what one had.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
