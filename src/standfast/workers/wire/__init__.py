"""What host and worker say to each other: messages, orders, and the frames that carry them.

Shared by both ends, so it imports nothing but the standard library and msgspec.
"""

from holdfast.workers.wire.frames import FrameReader, FrameTooLarge, OversizedFrame, encode_frame
from holdfast.workers.wire.messages import PROTOCOL_VERSIONS, Message, decode, encode

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
