"""Playing recordings: the server's part to a session, or the client's part to a server."""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from standfast.base.errors import StandfastError
from standfast.realtime.audio import validate_pace
from standfast.realtime.errors import ConnectFailed
from standfast.realtime.model import RealtimeModelConfig
from standfast.realtime.openai._protocol.codec import decode_message_dict, encode_message
from standfast.realtime.openai.protocol_model import RealtimeProtocolModel
from standfast.realtime.openai.recording import RecordingEntry, read_recording
from standfast.realtime.openai.transport import Transport, TransportClosed

# Of these there are more or fewer each time, so nobody waits for a certain one.
_UNMATCHED_SUFFIXES = ("input_audio_buffer.append", ".delta", "rate_limits.updated")
_RECORDED_ACKNOWLEDGE_TIMEOUT = (
    10.0  # seconds that the server had when it was recorded, unless the program said otherwise
)
_ID_KEYS = frozenset(["id", "item_id", "response_id", "call_id", "previous_item_id", "event_id"])


class ReplayDiverged(StandfastError):
    """The other side did not say what it said in the recording. ``heard`` is what it said since."""

    code = "realtime-replay-diverged"

    def __init__(self, line: int, expected: str, received: Sequence[str]) -> None:
        super().__init__(f"line {line} of the recording: {expected!r} was expected, heard was {list(received)}")
        self.line, self.expected, self.received = line, expected, tuple(received)


def _is_matched(event_type: str | None) -> bool:
    return event_type is not None and not event_type.endswith(_UNMATCHED_SUFFIXES)


class _ReplayClock:
    """When something is due that was said then: as much later, in all, as the other side was too late."""

    def __init__(self, entries: Sequence[RecordingEntry], speed: float | None) -> None:
        self._loop, self._speed = asyncio.get_running_loop(), validate_pace(speed, "speed")
        self._recording_start, self._replay_start = entries[0].at if entries else 0.0, self._loop.time()

    async def sleep_until(self, at: float) -> None:
        if left := self.get_delay(at):
            await asyncio.sleep(left)

    def mark_reached(self, at: float) -> None:
        """The other side has said what it said then."""
        self._replay_start += max(0.0, -self._get_signed_delay(at))

    def get_delay(self, at: float) -> float:
        """How long it is until then."""
        return max(0.0, self._get_signed_delay(at))

    def _get_signed_delay(self, at: float) -> float:
        return (
            0.0
            if self._speed is None
            else self._replay_start + (at - self._recording_start) / self._speed - self._loop.time()
        )


class ReplayTransport:
    """The server of a recording. It says what it said, when the client has said what came before.

    ``speed`` is how fast: 1.0 as it was, ``None`` without pauses. What a client does not say when its time has come is
    waited for ``patience`` seconds; then the link ends with :class:`ReplayDiverged` as its error.
    """

    def __init__(self, entries: Sequence[RecordingEntry], *, speed: float | None = None, timeout: float = 5.0) -> None:
        self._entries = deque(entries)
        self._clock, self._timeout = _ReplayClock(entries, speed), timeout
        self._sent_types: list[str] = []
        self._frame_sent = asyncio.Event()

    async def send(self, frame: bytes) -> None:
        kind = decode_message_dict(frame)["type"]
        if _is_matched(kind):
            self._sent_types.append(kind)
            self._frame_sent.set()

    async def receive(self) -> bytes | str:
        while self._entries:
            entry = self._entries.popleft()
            match entry.way:
                case "sent" if _is_matched(entry.type):
                    await self._wait_for_frame(entry, str(entry.type))
                    self._clock.mark_reached(entry.at)
                case "received":
                    await self._clock.sleep_until(entry.at)
                    return entry.as_frame()
                case "closed":
                    raise TransportClosed(entry.code, entry.reason)
        raise TransportClosed(1000, "the recording ends here")

    async def close(self) -> None:
        self._entries.clear()

    async def _wait_for_frame(self, entry: RecordingEntry, event_type: str) -> None:
        try:
            async with asyncio.timeout(self._clock.get_delay(entry.at) + self._timeout):
                while event_type not in self._sent_types:
                    self._frame_sent.clear()
                    await self._frame_sent.wait()
        except TimeoutError:
            diverged = ReplayDiverged(entry.line, event_type, self._sent_types)
            raise TransportClosed(None, str(diverged), diverged) from diverged
        self._sent_types.remove(event_type)


class ReplayedRealtimeModel(RealtimeProtocolModel):
    """A model that answers as a recording has it: a bug report that can be run.

    Each time it is connected, it plays the next connection of the recording.
    """

    def __init__(self, path: str | Path, *, speed: float | None = None, timeout: float = 5.0) -> None:
        # A server that is played slowly takes longer to acknowledge; without pauses it does so at once, or never did.
        pace = validate_pace(speed, "speed")
        within = timeout / 2 if pace is None else max(timeout, _RECORDED_ACKNOWLEDGE_TIMEOUT / pace)
        super().__init__(acknowledge_timeout=within)
        self._connections = deque(read_recording(path))
        self._speed, self._timeout = speed, timeout

    async def open_transport(self, options: RealtimeModelConfig) -> Transport:
        if not self._connections:
            raise ConnectFailed("the recording has no further connection")
        return ReplayTransport(self._connections.popleft(), speed=self._speed, timeout=self._timeout)


async def replay_client(
    transport: Transport, entries: Sequence[RecordingEntry], *, speed: float | None = None, timeout: float = 5.0
) -> list[dict[str, Any]]:
    """Say to a server what the client said, each time after the server has said what came before.

    The server's own names for items, responses and calls take the place of the recorded ones. Gives everything the
    server said up to the last recorded message that is waited for; pieces and rate limits are not. Raises
    :class:`ReplayDiverged`, or ``LinkClosed`` if the server ends it earlier than it did.
    """
    server = _MessageReader(transport)
    names: dict[str, str] = {}
    pace = _ReplayClock(entries, speed)
    for entry in entries:
        if entry.way == "sent" and entry.frame is not None:
            await pace.sleep_until(entry.at)
            await transport.send(encode_message(_replace_ids(decode_message_dict(entry.as_frame()), names)))
        elif entry.way == "received" and entry.frame is not None and _is_matched(entry.type):
            said = await server.read_next(str(entry.type), entry.line, timeout=pace.get_delay(entry.at) + timeout)
            _map_ids(entry.frame, said, names)
            pace.mark_reached(entry.at)
    return server.messages


class _MessageReader:
    """What a server says, to be taken by type: their order may differ a little from the recording."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._unmatched: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []

    async def read_next(self, event_type: str, line: int, *, timeout: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout):
                while (said := self._pop_message(event_type)) is None:
                    self.messages.append(decode_message_dict(await self._transport.receive()))
                    self._unmatched.append(self.messages[-1])
        except TimeoutError:
            raise ReplayDiverged(line, event_type, [message["type"] for message in self._unmatched]) from None
        return said

    def _pop_message(self, event_type: str) -> dict[str, Any] | None:
        for message in self._unmatched:
            if message["type"] == event_type:
                self._unmatched.remove(message)
                return message
        return None


def _map_ids(recorded: Any, replayed: Any, id_map: dict[str, str]) -> None:
    """What the server calls now what was called otherwise in the recording."""
    if isinstance(recorded, dict) and isinstance(replayed, dict):
        for key in recorded.keys() & replayed.keys():
            if key in _ID_KEYS and isinstance(recorded[key], str) and isinstance(replayed[key], str):
                id_map[recorded[key]] = replayed[key]
            else:
                _map_ids(recorded[key], replayed[key], id_map)
    elif isinstance(recorded, list) and isinstance(replayed, list):
        for old, new in zip(recorded, replayed, strict=False):
            _map_ids(old, new, id_map)


def _replace_ids(value: Any, id_map: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {
            key: id_map.get(part, part) if key in _ID_KEYS and isinstance(part, str) else _replace_ids(part, id_map)
            for key, part in value.items()
        }
    return [_replace_ids(part, id_map) for part in value] if isinstance(value, list) else value
