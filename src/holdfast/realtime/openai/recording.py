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

from holdfast.base.errors import InvalidInput
from holdfast.realtime.errors import BadFrame
from holdfast.realtime.openai.frames import read_plain, shown, write
from holdfast.realtime.openai.link import Link, LinkClosed

log = logging.getLogger("holdfast.realtime")

Way: TypeAlias = Literal["opened", "sent", "received", "closed"]

REDACTED = "[redacted]"
_SECRET = re.compile(r"authorization|api[-_]?key|secret|password|credential|cookie|^headers$|^(access_)?token$", re.I)
_ADDRESS = re.compile(r"(https?|wss?)://(?:[^/?#]*@)?([^/?#]*)(.*)", re.I | re.S)
_AUDIO = re.compile(r"^\[(\d+) bytes of audio\]$")
_PIECES = {"response.output_audio.delta": "delta", "input_audio_buffer.append": "audio"}
# Where audio is: in messages of these types, and in parts of items.
_AUDIO_KEYS = {**_PIECES, "input_audio": "audio", "output_audio": "audio", "audio": "audio"}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a recording."""

    at: float
    way: Way
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
        return self.text or "" if self.frame is None else write(_with_audio(self.frame, _silence))


class Recording:
    """A file that is written while a model is connected; a model that connects again goes on with it."""

    def __init__(self, path: str | Path, *, audio: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._keeps_audio, self._clock = Path(path), audio, clock
        self._file: IO[str] | None = None
        self._began: float | None = None

    def start(self) -> None:
        """A connection begins. The first one replaces what was in the file."""
        mode = "w" if self._began is None else "a"
        self._file = open(self._path, mode, encoding="utf-8", opener=_for_the_owner)  # noqa: SIM115 - kept open
        self._began = self._clock() if self._began is None else self._began
        self._line("opened")

    def passed(self, way: Way, frame: bytes | str) -> None:
        """Write down a frame. What is not audio is on disk when this returns."""
        try:
            message = read_plain(frame)
        except BadFrame:
            self._line(way, text=shown(frame))
        else:
            self._line(way, frame=redacted(message, audio=self._keeps_audio), flush=message["type"] not in _PIECES)

    def close(self, code: int | None = 1000, reason: str = "closed here") -> None:
        self._line("closed", code=code, reason=reason)
        self._shut()

    def _shut(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):  # What could not be written before cannot be written now.
                file.close()

    def _line(self, way: Way, *, flush: bool = True, **parts: Any) -> None:
        if self._file is None or self._began is None:
            return
        line = {"at": round(self._clock() - self._began, 6), "way": way, **parts}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if flush:
                self._file.flush()
        except OSError:
            log.exception("the recording %s ends here; the connection continues", self._path)
            self._shut()


def _for_the_owner(path: str, flags: int) -> int:
    """What people say to each other is not for everybody on the machine."""
    return os.open(path, flags, 0o600)


class RecordedLink:
    """A link whose frames are written down as they pass, in a recording that was started."""

    def __init__(self, link: Link, recording: Recording) -> None:
        self._link, self._recording = link, recording

    async def send(self, frame: bytes) -> None:
        self._recording.passed("sent", frame)
        await self._link.send(frame)

    async def receive(self) -> bytes | str:
        try:
            frame = await self._link.receive()
        except LinkClosed as closed:
            self._recording.close(closed.code, closed.reason)
            raise
        self._recording.passed("received", frame)
        return frame

    async def close(self) -> bool | None:
        try:
            return await self._link.close()
        finally:
            self._recording.close()


def read_recording(path: str | Path) -> list[list[Entry]]:
    """The connections in a recording, each with its lines.

    Raises :class:`InvalidInput` with the number of a line that does not belong into a recording.
    """
    connections: list[list[Entry]] = []
    with Path(path).open(encoding="utf-8", errors="replace") as file:
        for entry in _entries(file, str(path)):
            if entry.way == "opened" or not connections:
                connections.append([])
            connections[-1].append(entry)
    return connections


def _entries(lines: IO[str], where: str) -> Iterator[Entry]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield Entry(**json.loads(line), line=number)
            except (ValueError, TypeError) as error:
                if not line.endswith("\n"):
                    return  # Whoever wrote it was killed meanwhile.
                raise InvalidInput(f"{where}, line {number} is not of a recording: {error}") from error


def redacted(message: dict[str, Any], *, audio: bool = False) -> dict[str, Any]:
    """The message without secrets and, unless wanted, without audio."""
    safe: dict[str, Any] = _without_secrets(message)
    return safe if audio else _with_audio(safe, _left_out)


def _host_of(address: str) -> str:
    """An address may have its key anywhere behind or before the host."""
    found = _ADDRESS.fullmatch(address)
    if found is None or address == f"{found[1]}://{found[2]}":
        return address
    return f"{found[1]}://{found[2]}/{REDACTED}"


def _without_secrets(value: Any, of: str = "") -> Any:
    if isinstance(value, str):
        return _host_of(value) if of.endswith("url") else value
    if isinstance(value, dict):
        return {
            key: REDACTED if _SECRET.search(key) and part is not None else _without_secrets(part, of=key)
            for key, part in value.items()
        }
    return [_without_secrets(part) for part in value] if isinstance(value, list) else value


def _with_audio(value: Any, change: Callable[[str], str]) -> Any:
    """The message with other audio in the places of its own."""
    if isinstance(value, list):
        return [_with_audio(part, change) for part in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    place = _AUDIO_KEYS.get(kind) if isinstance(kind, str) else None
    return {
        key: change(part) if key == place and isinstance(part, str) else _with_audio(part, change)
        for key, part in value.items()
    }


def _left_out(audio: str) -> str:
    try:
        return f"[{len(binascii.a2b_base64(audio))} bytes of audio]"
    except ValueError:
        return "[0 bytes of audio]"


def _silence(audio: str) -> str:
    left_out = _AUDIO.match(audio)
    return audio if left_out is None else base64.b64encode(bytes(int(left_out[1]))).decode()
