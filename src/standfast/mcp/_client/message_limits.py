"""Limits of a message while it is read: its size after decompression, and the number of values in it.

A server could otherwise make its client keep gigabytes, or block its event loop for seconds with parsing.
"""

import re
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import httpx2

MAX_VALUES = 200_000
"""The number of values in a message: objects, arrays and their items. Brackets inside a text do not count."""

MAX_PARTS = 10_000
"""The number of parts in a message: contents of outputs, prompts and resources. Each is compared with several types."""

ACCEPTED_ENCODINGS = "gzip, deflate"
_PIECE_BYTES = 2**16
_GZIP_OR_ZLIB = 47  # the parameter of zlib that recognizes both formats
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
# A text of JSON, which never has line ends. At the end of a piece it may not be complete.
_TEXT = re.compile(rb'"(?:[^"\\\r\n]++|\\[^\r\n])*+("|\\?\Z)?')


class MessageRefused(httpx2.StreamError, httpx2.SSEError):
    """The message is not read further. Both base classes, because the library handles one for each kind of body."""


class MessageMeter:
    """Measures a message piece by piece."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.reset()

    def reset(self) -> None:
        """Begin a new message."""
        self._bytes = self._values = 0
        self._open_text = b""

    def add(self, piece: bytes) -> None:
        """Count a piece. Raises :class:`MessageRefused`."""
        self._bytes += len(piece)
        if self._bytes > self._max_bytes:
            raise MessageRefused(f"a message of more than {self._max_bytes} bytes (see max_message_bytes)")
        data = self._open_text + piece
        self._open_text = b""
        outside = _TEXT.sub(self._skip_text, data)
        self._values += sum(map(outside.count, (b"{", b"[", b",")))
        if self._values > MAX_VALUES:
            raise MessageRefused(f"a message of more than {MAX_VALUES} values")

    def _skip_text(self, found: re.Match[bytes]) -> bytes:
        """Take a text out. Of one that is not complete yet, remember that it is open, and a last backslash."""
        if found[1] != b'"' and found.end() == len(found.string):
            self._open_text = b'"' + (found[1] or b"")
        return b""


_PART_LISTS = ("content", "contents", "messages")


def check_part_count(content: Mapping[str, Any] | None) -> None:
    """Raise :class:`MessageRefused` if the parameters or the result of a message have too many parts."""
    count, pending = 0, [content]
    while pending:
        current = pending.pop()
        if not isinstance(current, Mapping):
            continue
        for name in _PART_LISTS:
            parts = current.get(name)
            parts = parts if isinstance(parts, list) else [parts]
            count += len(parts)
            if count > MAX_PARTS:
                raise MessageRefused(f"a message of more than {MAX_PARTS} parts")
            pending += parts


def limit_bodies(client: httpx2.AsyncClient, max_bytes: int) -> httpx2.AsyncClient:
    """Limit all bodies that the client reads, and each event of a stream of events."""

    async def limit(response: httpx2.Response) -> None:
        response.stream = LimitedStream(response, max_bytes)
        # As the format of events requires. In another encoding, other bytes would be counted than are parsed.
        response.encoding = "utf-8"
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
        if decoder.eof:
            # zlib would keep all of it.
            raise MessageRefused("a compressed message with data after its end")
        try:
            piece = decoder.decompress(data, _PIECE_BYTES)
        except zlib.error as error:
            raise MessageRefused(f"a message that cannot be decompressed ({error})") from None
        data = decoder.unconsumed_tail or decoder.unused_data
        yield piece
