"""The wire format between host and worker: messages, control commands, and the frames that carry them.

Both sides use it, so it imports only the standard library and msgspec.
"""

from standfast.workers.wire.frames import FrameReader, FrameTooLarge, OversizedFrame, encode_frame
from standfast.workers.wire.messages import PROTOCOL_VERSIONS, Message, decode, encode

__all__ = [
    "PROTOCOL_VERSIONS",
    "FrameReader",
    "FrameTooLarge",
    "Message",
    "OversizedFrame",
    "decode",
    "encode",
    "encode_frame",
]
