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
from holdfast.realtime.pace import checked_pace

# Of these there are more or fewer each time, so nobody waits for a certain one.
_UNCOUNTED = ("input_audio_buffer.append", ".delta", "rate_limits.updated")
_ACKNOWLEDGED_WITHIN = 10.0  # seconds that the server had when it was recorded, unless the program said otherwise
_NAMES = frozenset(["id", "item_id", "response_id", "call_id", "previous_item_id", "event_id"])


class ReplayDiverged(HoldfastError):
    """The other side did not say what it said in the recording. ``heard`` is what it said since."""

    code = "realtime-replay-diverged"

    def __init__(self, line: int, expected: str, heard: Sequence[str]) -> None:
        super().__init__(f"line {line} of the recording: {expected!r} was expected, heard was {list(heard)}")
        self.line, self.expected, self.heard = line, expected, tuple(heard)


def _counts(kind: str | None) -> bool:
    return kind is not None and not kind.endswith(_UNCOUNTED)


class _Pace:
    """When something is due that was said then: as much later, in all, as the other side was too late."""

    def __init__(self, entries: Sequence[Entry], speed: float | None) -> None:
        self._loop, self._speed = asyncio.get_running_loop(), checked_pace(speed, "speed")
        self._begin, self._began = entries[0].at if entries else 0.0, self._loop.time()

    async def until(self, at: float) -> None:
        if left := self.left(at):
            await asyncio.sleep(left)

    def reached(self, at: float) -> None:
        """The other side has said what it said then."""
        self._began += max(0.0, -self._due_in(at))

    def left(self, at: float) -> float:
        """How long it is until then."""
        return max(0.0, self._due_in(at))

    def _due_in(self, at: float) -> float:
        return 0.0 if self._speed is None else self._began + (at - self._begin) / self._speed - self._loop.time()


class ReplayedLink:
    """The server of a recording. It says what it said, when the client has said what came before.

    ``speed`` is how fast: 1.0 as it was, ``None`` without pauses. What a client does not say when its time has come is
    waited for ``patience`` seconds; then the link ends with :class:`ReplayDiverged` as its error.
    """

    def __init__(self, entries: Sequence[Entry], *, speed: float | None = None, patience: float = 5.0) -> None:
        self._entries = deque(entries)
        self._pace, self._patience = _Pace(entries, speed), patience
        self._heard: list[str] = []
        self._news = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        kind = read_plain(frame)["type"]
        if _counts(kind):
            self._heard.append(kind)
            self._news.set()

    async def receive(self) -> bytes | str:
        while self._entries:
            entry = self._entries.popleft()
            match entry.way:
                case "sent" if _counts(entry.type):
                    await self._expect(entry, str(entry.type))
                    self._pace.reached(entry.at)
                case "received":
                    await self._pace.until(entry.at)
                    return entry.as_frame()
                case "closed":
                    raise LinkClosed(entry.code, entry.reason)
        raise LinkClosed(1000, "the recording ends here")

    async def close(self) -> None:
        self._entries.clear()

    async def _expect(self, entry: Entry, kind: str) -> None:
        try:
            async with asyncio.timeout(self._pace.left(entry.at) + self._patience):
                while kind not in self._heard:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            diverged = ReplayDiverged(entry.line, kind, self._heard)
            raise LinkClosed(None, str(diverged), diverged) from diverged
        self._heard.remove(kind)


class ReplayedRealtimeModel(WireModel):
    """A model that answers as a recording has it: a bug report that can be run.

    Each time it is connected, it plays the next connection of the recording.
    """

    def __init__(self, path: str | Path, *, speed: float | None = None, patience: float = 5.0) -> None:
        # A server that is played slowly takes longer to acknowledge; without pauses it does so at once, or never did.
        pace = checked_pace(speed, "speed")
        within = patience / 2 if pace is None else max(patience, _ACKNOWLEDGED_WITHIN / pace)
        super().__init__(acknowledge_within=within)
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
    server = _Hearing(link)
    names: dict[str, str] = {}
    pace = _Pace(entries, speed)
    for entry in entries:
        if entry.way == "sent" and entry.frame is not None:
            await pace.until(entry.at)
            await link.send(write(_renamed(read_plain(entry.as_frame()), names)))
        elif entry.way == "received" and entry.frame is not None and _counts(entry.type):
            said = await server.next(str(entry.type), entry.line, within=pace.left(entry.at) + patience)
            _learn(entry.frame, said, names)
            pace.reached(entry.at)
    return server.heard


class _Hearing:
    """What a server says, to be taken by type: their order may differ a little from the recording."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._not_taken: list[dict[str, Any]] = []
        self.heard: list[dict[str, Any]] = []

    async def next(self, kind: str, line: int, *, within: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(within):
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
