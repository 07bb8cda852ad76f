"""Recordings of realtime connections: JSON Lines with what passed in both directions, and when.

A line is ``{"at": seconds, "way": "sent" | "received", "frame": {...}}``, with ``"text"`` instead of ``"frame"`` for
what is no message. Each connection begins with a line whose way is ``"opened"`` and ends with ``"closed"``, its code
and its reason. ``sent`` is what the client said. Keys and tokens are never written; audio only if that is asked for.
"""

import base64
import binascii
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, TypeAlias

from standfast.base.errors import InvalidInput
from standfast.realtime.errors import BadFrame
from standfast.realtime.openai._protocol.codec import decode_message_dict, encode_message, frame_to_text
from standfast.realtime.openai.transport import Transport, TransportClosed

log = logging.getLogger("standfast.realtime")

Direction: TypeAlias = Literal["opened", "sent", "received", "closed"]

REDACTED = "[redacted]"
_SECRET_KEY = re.compile(
    r"authorization|api[-_]?key|secret|password|credential|cookie|^headers$|^(access_)?token$", re.I
)
_URL_PARTS = re.compile(r"(https?|wss?)://(?:[^/?#]*@)?([^/?#]*)(.*)", re.I | re.S)
_AUDIO_PLACEHOLDER = re.compile(r"^\[(\d+) bytes of audio\]$")
_AUDIO_CHUNK_KEYS = {"response.output_audio.delta": "delta", "input_audio_buffer.append": "audio"}
# Where audio is: in messages of these types, and in parts of items.
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
    """Which line of the file it is."""

    @property
    def type(self) -> str | None:
        """The type of the message, if it is one."""
        return None if self.frame is None else self.frame["type"]

    def as_frame(self) -> bytes | str:
        """What was on the wire; where audio was left out, silence of the same length."""
        return self.text or "" if self.frame is None else encode_message(_replace_audio(self.frame, _fill_with_silence))


class Recording:
    """A file that is written while a model is connected; a model that connects again goes on with it."""

    def __init__(self, path: str | Path, *, audio: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._include_audio, self._clock = Path(path), audio, clock
        self._file: IO[str] | None = None
        self._started_at: float | None = None

    def start(self) -> None:
        """A connection begins. The first one replaces what was in the file."""
        mode = "w" if self._started_at is None else "a"
        self._file = open(self._path, mode, encoding="utf-8", opener=_open_private)  # noqa: SIM115 - kept open
        self._started_at = self._clock() if self._started_at is None else self._started_at
        self._write_line("opened")

    def record_frame(self, direction: Direction, frame: bytes | str) -> None:
        """Write down a frame. What is not audio is on disk when this returns."""
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

    def close(self, code: int | None = 1000, reason: str = "closed here") -> None:
        self._write_line("closed", code=code, reason=reason)
        self._close_file()

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # What could not be written before cannot be written now.
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
            log.exception("the recording %s ends here; the connection continues", self._path)
            self._close_file()


def _open_private(path: str, flags: int) -> int:
    """What people say to each other is not for everybody on the machine."""
    return os.open(path, flags, 0o600)


class RecordingTransport:
    """A link whose frames are written down as they pass, in a recording that was started."""

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
    """The connections in a recording, each with its lines.

    Raises :class:`InvalidInput` with the number of a line that does not belong into a recording.
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
                    return  # Whoever wrote it was killed meanwhile.
                raise InvalidInput(f"{source}, line {number} is not of a recording: {error}") from error


def redact(message: dict[str, Any], *, include_audio: bool = False) -> dict[str, Any]:
    """The message without secrets and, unless wanted, without audio."""
    safe: dict[str, Any] = _remove_secrets(message)
    return safe if include_audio else _replace_audio(safe, _describe_omitted_audio)


def _redact_url(url: str) -> str:
    """An address may have its key anywhere behind or before the host."""
    found = _URL_PARTS.fullmatch(url)
    if found is None or url == f"{found[1]}://{found[2]}":
        return url
    return f"{found[1]}://{found[2]}/{REDACTED}"


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
    """The message with other audio in the places of its own."""
    if isinstance(value, list):
        return [_replace_audio(part, replace) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    place = _AUDIO_KEYS.get(kind) if isinstance(kind, str) else None
    return {
        key: replace(part) if key == place and isinstance(part, str) else _replace_audio(part, replace)
        for key, part in value.items()
    }


def _describe_omitted_audio(audio: str) -> str:
    try:
        return f"[{len(binascii.a2b_base64(audio))} bytes of audio]"
    except ValueError:
        return "[0 bytes of audio]"


def _fill_with_silence(audio: str) -> str:
    left_out = _AUDIO_PLACEHOLDER.match(audio)
    return audio if left_out is None else base64.b64encode(bytes(int(left_out[1]))).decode()
