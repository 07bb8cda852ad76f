"""Models: the interface, models for OpenAI's APIs, the local model, and retries. Names are imported on first use."""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
