"""What host and worker say to each other: messages, orders, and the frames that carry them.

Shared by both ends, so it imports nothing but the standard library and msgspec.
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
