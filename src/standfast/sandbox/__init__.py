"""Agents that work in a sandbox: a workspace with files and commands, on this machine and without network.

Names are imported on first use.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
