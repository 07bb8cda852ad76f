"""Context variables that are shared between packages."""

from contextvars import ContextVar

current_conversation: ContextVar[str] = ContextVar("standfast_conversation", default="")
"""The key of the current conversation, for resources that are kept per conversation.

Runs set it around each tool call; outside of tool calls it is an empty string.
"""
