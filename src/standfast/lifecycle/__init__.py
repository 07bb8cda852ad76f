"""Structured ownership of tasks, resources and threads; bounded channels; state machines.

openai-agents has its hooks under this path, so they can be imported from here, too.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
