"""Which conversation the code that runs now belongs to."""

from contextvars import ContextVar

current_conversation: ContextVar[str] = ContextVar("standfast_conversation", default="")
"""A key for what is kept per conversation. Runs set it around every call of a tool; empty outside of them."""
