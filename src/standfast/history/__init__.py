"""Sessions and stores: the histories of conversations. Names are imported on first use, as backends are optional."""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
