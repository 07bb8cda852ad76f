"""Tools of MCP servers for agents. Names are resolved on first use; the ``mcp`` library when a server is connected."""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
