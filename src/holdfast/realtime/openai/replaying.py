"""Playing recordings: the server's part to a session, or the client's part to a server."""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.realtime.errors import ConnectFailed
from holdfast.realtime.model import RealtimeModelConfig
from holdfast.realtime.openai.frames import read_plain, write
from holdfast.realtime.openai.link import Link, LinkClosed
from holdfast.realtime.openai.recording import Entry, read_recording
from holdfast.realtime.openai.wire_model import WireModel

# Of these there are more or fewer each time, so nobody waits for a certain one.
_UNCOUNTED = ("input_audio_buffer.append", ".delta", "rate_limits.updated")
_NAMES = frozenset(["id", "item_id", "response_id", "call_id", "previous_item_id", "event_id"])


class ReplayDiverged(HoldfastError):
    """The other side did not say what it said in the recording. ``heard`` is what it said since."""

    code = "realtime-replay-diverged"

    def __init__(self, line: int, expected: str, heard: Sequence[str]) -> None:
        super().__init__(f"line {line} of the recording: {expected!r} was expected, heard was {list(heard)}")
        self.line, self.expected, self.heard = line, expected, tuple(heard)


def _counts(kind: str | None) -> bool:
    return kind is not None and not kind.endswith(_UNCOUNTED)


class ReplayedLink:
    """The server of a recording. It says what it said, when the client has said what came before.

    ``speed`` is how fast: 1.0 as it was, ``None`` without pauses. A client that says something else is waited for
    ``patience`` seconds; then the link ends with :class:`ReplayDiverged` as its error.
    """

    def __init__(self, entries: Sequence[Entry], *, speed: float | None = None, patience: float = 5.0) -> None:
        self._entries = deque(enumerate(entries, 1))
        self._speed, self._patience = speed, patience
        self._heard: list[str] = []
        self._news = asyncio.Event()
        self._at = entries[0].at if entries else 0.0

    async def send(self, frame: bytes) -> None:
        kind = read_plain(frame)["type"]
        if _counts(kind):
            self._heard.append(kind)
            self._news.set()

    async def receive(self) -> bytes | str:
        while self._entries:
            line, entry = self._entries.popleft()
            match entry.way:
                case "sent" if _counts(entry.type):
                    await self._expect(line, str(entry.type))
                case "received":
                    await self._pause(entry.at)
                    return entry.as_frame()
                case "closed":
                    raise LinkClosed(entry.code, entry.reason)
        raise LinkClosed(1000, "the recording ends here")

    async def close(self) -> None:
        self._entries.clear()

    async def _expect(self, line: int, kind: str) -> None:
        try:
            async with asyncio.timeout(self._patience):
                while kind not in self._heard:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            diverged = ReplayDiverged(line, kind, self._heard)
            raise LinkClosed(None, str(diverged), diverged) from diverged
        self._heard.remove(kind)

    async def _pause(self, at: float) -> None:
        if self._speed is not None:
            await asyncio.sleep(max(0.0, at - self._at) / self._speed)
        self._at = at


class ReplayedRealtimeModel(WireModel):
    """A model that answers as a recording has it: a bug report that can be run.

    Each time it is connected, it plays the next connection of the recording.
    """

    def __init__(self, path: str | Path, *, speed: float | None = None, patience: float = 5.0) -> None:
        super().__init__(acknowledge_within=patience)
        self._connections = deque(read_recording(path))
        self._speed, self._patience = speed, patience

    async def dial(self, options: RealtimeModelConfig) -> Link:
        if not self._connections:
            raise ConnectFailed("the recording has no further connection")
        return ReplayedLink(self._connections.popleft(), speed=self._speed, patience=self._patience)


async def replay_to(
    link: Link, entries: Sequence[Entry], *, speed: float | None = None, patience: float = 5.0
) -> list[dict[str, Any]]:
    """Say to a server what the client said, each time after the server has said what came before.

    The server's own names for items, responses and calls take the place of the recorded ones. Gives everything the
    server said up to the last recorded message that is waited for; pieces and rate limits are not. Raises
    :class:`ReplayDiverged`, or ``LinkClosed`` if the server ends it earlier than it did.
    """
    server = _Hearing(link, patience)
    names: dict[str, str] = {}
    before = entries[0].at if entries else 0.0
    for line, entry in enumerate(entries, 1):
        if entry.way == "sent" and entry.frame is not None:
            if speed is not None:
                await asyncio.sleep(max(0.0, entry.at - before) / speed)
            before = entry.at
            await link.send(write(_renamed(read_plain(entry.as_frame()), names)))
        elif entry.way == "received" and entry.frame is not None and _counts(entry.type):
            _learn(entry.frame, await server.next(str(entry.type), line), names)
    return server.heard


class _Hearing:
    """What a server says, to be taken by type: their order may differ a little from the recording."""

    def __init__(self, link: Link, patience: float) -> None:
        self._link, self._patience = link, patience
        self._not_taken: list[dict[str, Any]] = []
        self.heard: list[dict[str, Any]] = []

    async def next(self, kind: str, line: int) -> dict[str, Any]:
        try:
            async with asyncio.timeout(self._patience):
                while (said := self._take(kind)) is None:
                    self.heard.append(read_plain(await self._link.receive()))
                    self._not_taken.append(self.heard[-1])
        except TimeoutError:
            raise ReplayDiverged(line, kind, [message["type"] for message in self._not_taken]) from None
        return said

    def _take(self, kind: str) -> dict[str, Any] | None:
        for message in self._not_taken:
            if message["type"] == kind:
                self._not_taken.remove(message)
                return message
        return None


def _learn(recorded: Any, said: Any, names: dict[str, str]) -> None:
    """What the server calls now what was called otherwise in the recording."""
    if isinstance(recorded, dict) and isinstance(said, dict):
        for key in recorded.keys() & said.keys():
            if key in _NAMES and isinstance(recorded[key], str) and isinstance(said[key], str):
                names[recorded[key]] = said[key]
            else:
                _learn(recorded[key], said[key], names)
    elif isinstance(recorded, list) and isinstance(said, list):
        for old, new in zip(recorded, said, strict=False):
            _learn(old, new, names)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: names.get(part, part) if key in _NAMES and isinstance(part, str) else _renamed(part, names)
            for key, part in value.items()
        }
    return [_renamed(part, names) for part in value] if isinstance(value, list) else value
