"""Recordings of realtime connections: JSON Lines with the frames of both directions and their times.

A line is ``{"at": seconds, "way": "sent" | "received", "frame": {...}}``, with ``"text"`` instead of ``"frame"`` if the
frame is not a JSON message. ``sent`` are the frames of the client. Each connection starts with a line whose ``way`` is
``"opened"`` and ends with ``"closed"``, its close code and reason. Keys and tokens are never written, audio only on
request.
"""

import base64
import binascii
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from standfast.base.errors import InvalidInput
from standfast.base.log import get_logger
from standfast.realtime.errors import BadFrame
from standfast.realtime.openai.codec import decode_message_dict, encode_message, frame_to_text
from standfast.realtime.openai.transport import Transport, TransportClosed

log = get_logger("standfast.realtime")

Direction: TypeAlias = Literal["opened", "sent", "received", "closed"]

REDACTED = "[redacted]"
_SECRET_KEY = re.compile(
    r"authorization|api[-_]?key|secret|password|credential|cookie|^headers$|^(access_)?token$", re.I
)
_URL_PARTS = re.compile(r"(https?|wss?)://(?:[^/?#]*@)?([^/?#]*)(.*)", re.I | re.S)
_AUDIO_PLACEHOLDER = re.compile(r"^\[(\d+) bytes of audio\]$")
_AUDIO_CHUNK_KEYS = {"response.output_audio.delta": "delta", "input_audio_buffer.append": "audio"}
# The key of base64 audio, by the type of the message or of the content part.
_AUDIO_KEYS = {**_AUDIO_CHUNK_KEYS, "input_audio": "audio", "output_audio": "audio", "audio": "audio"}


@dataclass(frozen=True, slots=True)
class RecordingEntry:
    """One line of a recording."""

    at: float
    way: Direction
    frame: dict[str, Any] | None = None
    text: str | None = None
    code: int | None = None
    reason: str = ""
    line: int = 0
    """The line number in the file."""

    @property
    def type(self) -> str | None:
        """The type of the message; ``None`` for other lines."""
        return None if self.frame is None else self.frame["type"]

    def as_frame(self) -> bytes | str:
        """Return the frame as it was sent, with silence of the same length in place of omitted audio."""
        return self.text or "" if self.frame is None else encode_message(_replace_audio(self.frame, _fill_with_silence))


class Recording:
    """A file to which a model writes its frames; a model that reconnects appends to it."""

    def __init__(self, path: str | Path, *, audio: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._include_audio, self._clock = Path(path), audio, clock
        self._file: IO[str] | None = None
        self._started_at: float | None = None

    def start(self) -> None:
        """Start recording a connection. The first one replaces the content of the file."""
        mode = "w" if self._started_at is None else "a"
        self._file = open(self._path, mode, encoding="utf-8", opener=_open_private)  # noqa: SIM115 - kept open
        self._started_at = self._clock() if self._started_at is None else self._started_at
        self._write_line("opened")

    def record_frame(self, direction: Direction, frame: bytes | str) -> None:
        """Record a frame. Everything but audio is flushed to the file when this returns."""
        try:
            message = decode_message_dict(frame)
        except BadFrame:
            self._write_line(direction, text=frame_to_text(frame))
        else:
            self._write_line(
                direction,
                frame=redact(message, include_audio=self._include_audio),
                flush=message["type"] not in _AUDIO_CHUNK_KEYS,
            )

    def close(self, code: int | None = 1000, reason: str = "closed by the client") -> None:
        """End the recording of the current connection, if there is one."""
        self._write_line("closed", code=code, reason=reason)
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # Closing flushes, and fails again after a failed write.
                file.close()

    def _write_line(self, direction: Direction, *, flush: bool = True, **fields: Any) -> None:
        if self._file is None or self._started_at is None:
            return
        line = {"at": round(self._clock() - self._started_at, 6), "way": direction, **fields}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if flush:
                self._file.flush()
        except OSError:
            log.exception("writing to %s failed: the recording stops, the connection continues", self._path)
            self._close_file()


def _open_private(path: str, flags: int) -> int:
    """Open a file that only its owner can read: recordings contain conversations."""
    return os.open(path, flags, 0o600)


class RecordingTransport:
    """Wraps a transport and writes its frames to a recording that was started."""

    def __init__(self, transport: Transport, recording: Recording) -> None:
        self._transport, self._recording = transport, recording

    async def send(self, frame: bytes) -> None:
        self._recording.record_frame("sent", frame)
        await self._transport.send(frame)

    async def receive(self) -> bytes | str:
        try:
            frame = await self._transport.receive()
        except TransportClosed as closed:
            self._recording.close(closed.code, closed.reason)
            raise
        self._recording.record_frame("received", frame)
        return frame

    async def close(self) -> bool | None:
        try:
            return await self._transport.close()
        finally:
            self._recording.close()


def read_recording(path: str | Path) -> list[list[RecordingEntry]]:
    """Return the connections of a recording, each as the list of its entries.

    Raises :class:`InvalidInput` with the number of the first line that is not a valid entry.
    """
    connections: list[list[RecordingEntry]] = []
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for entry in _parse_entries(file, str(path)):
            if entry.way == "opened" or not connections:
                connections.append([])
            connections[-1].append(entry)
    return connections


def _parse_entries(lines: IO[str], source: str) -> Iterator[RecordingEntry]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield RecordingEntry(**json.loads(line), line=number)
            except (ValueError, TypeError) as error:
                if not line.endswith("\n"):
                    return  # The recording process was killed while writing the last line.
                raise InvalidInput(f"{source}, line {number}: not a valid recording entry: {error}") from error


def redact(message: dict[str, Any], *, include_audio: bool = False) -> dict[str, Any]:
    """Return the message without secrets and, unless ``include_audio`` is set, without audio."""
    safe: dict[str, Any] = _remove_secrets(message)
    return safe if include_audio else _replace_audio(safe, _describe_omitted_audio)


def _redact_url(url: str) -> str:
    """Keep the scheme and host only: user info, path and query may contain a key."""
    parts = _URL_PARTS.fullmatch(url)
    if parts is None or url == f"{parts[1]}://{parts[2]}":
        return url
    return f"{parts[1]}://{parts[2]}/{REDACTED}"


def _remove_secrets(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        return _redact_url(value) if name.endswith("url") else value
    if isinstance(value, dict):
        return {
            key: REDACTED if _SECRET_KEY.search(key) and part is not None else _remove_secrets(part, name=key)
            for key, part in value.items()
        }
    return [_remove_secrets(part) for part in value] if isinstance(value, list) else value


def _replace_audio(value: Any, replace: Callable[[str], str]) -> Any:
    """Return the value with ``replace`` applied to all base64 audio in it."""
    if isinstance(value, list):
        return [_replace_audio(part, replace) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    audio_key = _AUDIO_KEYS.get(kind) if isinstance(kind, str) else None
    return {
        key: replace(part) if key == audio_key and isinstance(part, str) else _replace_audio(part, replace)
        for key, part in value.items()
    }


def _describe_omitted_audio(audio: str) -> str:
    try:
        return f"[{len(binascii.a2b_base64(audio))} bytes of audio]"
    except ValueError:
        return "[0 bytes of audio]"


def _fill_with_silence(audio: str) -> str:
    placeholder = _AUDIO_PLACEHOLDER.match(audio)
    return audio if placeholder is None else base64.b64encode(bytes(int(placeholder[1]))).decode()
