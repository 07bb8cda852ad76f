"""A realtime model that runs in the process: the server side of the protocol, responders, speech and detection.

Names are imported on first use.
"""

from standfast.base.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
