"""Connections to MCP servers and the conversion of their tools."""
