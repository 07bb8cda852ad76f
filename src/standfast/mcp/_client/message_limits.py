"""Limits of a message while it is read: its size after decompression, and the number of objects in it.

A server could otherwise make its client keep gigabytes, or block its event loop for seconds with parsing.
"""

import zlib
from collections.abc import AsyncIterator, Iterator

import httpx2

MAX_CONTAINERS = 200_000
"""The number of objects and arrays in a message. Brackets inside texts are counted, too, as that needs no parsing."""

ACCEPTED_ENCODINGS = "gzip, deflate"
_PIECE_BYTES = 2**16
_GZIP_OR_ZLIB = 47  # the parameter of zlib that recognizes both formats
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")


class MessageRefused(httpx2.StreamError, httpx2.SSEError):
    """The message is not read further. Both base classes, because the library handles one for each kind of body."""


class MessageMeter:
    """Measures a message piece by piece."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.reset()

    def reset(self) -> None:
        """Begin a new message."""
        self._bytes = self._containers = 0

    def add(self, piece: bytes) -> None:
        """Count a piece. Raises :class:`MessageRefused`."""
        self._bytes += len(piece)
        if self._bytes > self._max_bytes:
            raise MessageRefused(f"a message of more than {self._max_bytes} bytes (see max_message_bytes)")
        self._containers += piece.count(b"{") + piece.count(b"[")
        if self._containers > MAX_CONTAINERS:
            raise MessageRefused(f"a message of more than {MAX_CONTAINERS} objects and arrays")


def limit_bodies(client: httpx2.AsyncClient, max_bytes: int) -> httpx2.AsyncClient:
    """Limit all bodies that the client reads, and each event of a stream of events."""

    async def limit(response: httpx2.Response) -> None:
        response.stream = LimitedStream(response, max_bytes)
        response.headers.pop("content-encoding", None)  # LimitedStream decompresses

    client.headers["accept-encoding"] = ACCEPTED_ENCODINGS
    client.event_hooks = {**client.event_hooks, "response": [limit, *client.event_hooks["response"]]}
    return client


class LimitedStream(httpx2.AsyncByteStream):
    """The decompressed body of a response, measured while it is read."""

    def __init__(self, response: httpx2.Response, max_bytes: int) -> None:
        self._stream, self._meter = response.stream, MessageMeter(max_bytes)
        self._encoding = response.headers.get("content-encoding", "identity").strip().lower()
        self._is_event_stream = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        self._tail = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        decoder = self._create_decoder()
        async for chunk in self._stream:  # type: ignore[union-attr]
            for piece in [chunk] if decoder is None else decompress(decoder, chunk):
                self._measure(piece)
                yield piece
        if decoder is not None:
            yield decoder.flush()

    async def aclose(self) -> None:
        await self._stream.aclose()  # type: ignore[union-attr]

    def _create_decoder(self) -> "zlib._Decompress | None":
        if self._encoding in ("gzip", "x-gzip", "deflate"):
            return zlib.decompressobj(_GZIP_OR_ZLIB)
        if self._encoding not in ("identity", ""):
            raise MessageRefused(f"a message compressed with {self._encoding!r}, which was not offered")
        return None

    def _measure(self, piece: bytes) -> None:
        if self._is_event_stream:
            recent = self._tail + piece
            if (end := max(map(recent.rfind, _EVENT_ENDS))) >= 0:
                self._meter.reset()
                piece = recent[end:]
            self._tail = recent[-3:]
        self._meter.add(piece)


def decompress(decoder: "zlib._Decompress", data: bytes) -> Iterator[bytes]:
    """Decompress in small pieces, so that each can be measured before the next one exists."""
    while data:
        try:
            piece = decoder.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise MessageRefused(f"a message that cannot be decompressed ({error})") from None
        data = decoder.unconsumed_tail
        yield piece
