"""MCP servers as a source of tools for agents.

Names are imported on first use, and the ``mcp`` library when a server is connected.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
