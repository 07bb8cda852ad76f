"""Replay of recordings: the frames of the server to a session, or the frames of the client to a server."""

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from standfast.base.errors import StandfastError
from standfast.realtime.audio import validate_pace
from standfast.realtime.errors import ConnectFailed
from standfast.realtime.model import RealtimeModelConfig
from standfast.realtime.openai.codec import decode_message_dict, encode_message
from standfast.realtime.openai.protocol_model import RealtimeProtocolModel
from standfast.realtime.openai.recording import RecordingEntry, read_recording
from standfast.realtime.openai.transport import Transport, TransportClosed

# The number of these messages varies from run to run, so replay does not wait for them.
_UNMATCHED_SUFFIXES = ("input_audio_buffer.append", ".delta", "rate_limits.updated")
_RECORDED_ACKNOWLEDGE_TIMEOUT = 10.0  # seconds; the default of the model that was recorded
_ID_KEYS = frozenset(["id", "item_id", "response_id", "call_id", "previous_item_id", "event_id"])


class ReplayDiverged(StandfastError):
    """The peer did not send the message that the recording expects.

    ``received`` are the types of the messages that it sent instead.
    """

    code = "realtime-replay-diverged"

    def __init__(self, line: int, expected: str, received: Sequence[str]) -> None:
        super().__init__(f"line {line} of the recording: expected {expected!r}, got {list(received)}")
        self.line, self.expected, self.received = line, expected, tuple(received)


def _is_matched(event_type: str | None) -> bool:
    return event_type is not None and not event_type.endswith(_UNMATCHED_SUFFIXES)


class _ReplayClock:
    """Maps times of the recording to the event loop's clock, shifted by the total delay of the peer."""

    def __init__(self, entries: Sequence[RecordingEntry], speed: float | None) -> None:
        self._loop, self._speed = asyncio.get_running_loop(), validate_pace(speed, "speed")
        self._recording_start, self._replay_start = entries[0].at if entries else 0.0, self._loop.time()

    async def sleep_until(self, at: float) -> None:
        if delay := self.get_delay(at):
            await asyncio.sleep(delay)

    def mark_reached(self, at: float) -> None:
        """Report that the peer has sent the message of this time; later ones shift if it was late."""
        self._replay_start += max(0.0, -self._get_signed_delay(at))

    def get_delay(self, at: float) -> float:
        """Return the seconds until a time of the recording is due."""
        return max(0.0, self._get_signed_delay(at))

    def _get_signed_delay(self, at: float) -> float:
        return (
            0.0
            if self._speed is None
            else self._replay_start + (at - self._recording_start) / self._speed - self._loop.time()
        )


class ReplayTransport:
    """Replays the server of a recording: each frame follows once the client has sent what came before it.

    ``speed`` 1.0 is the recorded speed, ``None`` is without pauses. If the client does not send an expected message
    within ``timeout`` seconds after its time, the transport closes with :class:`ReplayDiverged` as its error.
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
        raise TransportClosed(1000, "end of the recording")

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
    """A model that replays a recording, for example one attached to a bug report.

    Each ``connect`` replays the next connection of the recording.
    """

    def __init__(self, path: str | Path, *, speed: float | None = None, timeout: float = 5.0) -> None:
        # A slow replay acknowledges later than the recording; without pauses it does so at once or never.
        pace = validate_pace(speed, "speed")
        acknowledge_timeout = timeout / 2 if pace is None else max(timeout, _RECORDED_ACKNOWLEDGE_TIMEOUT / pace)
        super().__init__(acknowledge_timeout=acknowledge_timeout)
        self._connections = deque(read_recording(path))
        self._speed, self._timeout = speed, timeout

    async def open_transport(self, options: RealtimeModelConfig) -> Transport:
        if not self._connections:
            raise ConnectFailed("the recording has no further connection to replay")
        return ReplayTransport(self._connections.popleft(), speed=self._speed, timeout=self._timeout)


async def replay_client(
    transport: Transport, entries: Sequence[RecordingEntry], *, speed: float | None = None, timeout: float = 5.0
) -> list[dict[str, Any]]:
    """Send the client's frames of a recording to a server, each once the server has sent what came before it.

    Ids of items, responses and calls are replaced by those that the server assigns. Returns the messages of the
    server up to the last recorded one that replay waits for, which excludes deltas and rate limits. Raises
    :class:`ReplayDiverged`, or :class:`TransportClosed` if the server closes earlier than in the recording.
    """
    server = _MessageReader(transport)
    id_map: dict[str, str] = {}
    clock = _ReplayClock(entries, speed)
    for entry in entries:
        if entry.way == "sent" and entry.frame is not None:
            await clock.sleep_until(entry.at)
            await transport.send(encode_message(_replace_ids(decode_message_dict(entry.as_frame()), id_map)))
        elif entry.way == "received" and entry.frame is not None and _is_matched(entry.type):
            message = await server.read_next(str(entry.type), entry.line, timeout=clock.get_delay(entry.at) + timeout)
            _map_ids(entry.frame, message, id_map)
            clock.mark_reached(entry.at)
    return server.messages


class _MessageReader:
    """Reads messages of a server by type, because their order may differ from the recording."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._unmatched: list[dict[str, Any]] = []
        self.messages: list[dict[str, Any]] = []

    async def read_next(self, event_type: str, line: int, *, timeout: float) -> dict[str, Any]:
        try:
            async with asyncio.timeout(timeout):
                while (message := self._pop_message(event_type)) is None:
                    self.messages.append(decode_message_dict(await self._transport.receive()))
                    self._unmatched.append(self.messages[-1])
        except TimeoutError:
            raise ReplayDiverged(line, event_type, [unmatched["type"] for unmatched in self._unmatched]) from None
        return message

    def _pop_message(self, event_type: str) -> dict[str, Any] | None:
        for message in self._unmatched:
            if message["type"] == event_type:
                self._unmatched.remove(message)
                return message
        return None


def _map_ids(recorded: Any, replayed: Any, id_map: dict[str, str]) -> None:
    """Add the ids of a recorded message to ``id_map``, with the ids in their places in the replayed one."""
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
