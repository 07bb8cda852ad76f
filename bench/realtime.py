"""Realtime sessions: what a delta costs, how fast an interruption is, how quickly many calls are closed."""

import asyncio
import base64
import gc
import json
import statistics
import time
from typing import Any

import agents.realtime as peer

import holdfast.realtime as ours
from bench.rows import Figure, at_least, at_most
from holdfast.realtime.local import ToneVoice
from holdfast.realtime.openai.client import RealtimeClient
from holdfast.testing import RealtimeServer

DELTAS, CALLS = 20_000, 500
AUDIO = b"\0" * 4800


def silent_model(library: Any) -> Any:
    """A model of either library that is only there: the measured events are handed to the session directly."""

    class Silent(library.RealtimeModel):  # type: ignore[misc]
        async def connect(self, options: Any) -> None: ...

        def add_listener(self, listener: Any) -> None: ...

        def remove_listener(self, listener: Any) -> None: ...

        async def send_event(self, event: Any) -> None: ...

        async def close(self) -> None: ...

    return Silent()


async def stream(library: Any) -> float:
    """Microseconds of processor time per model event, with somebody who reads what the session tells."""
    session = library.RealtimeSession(silent_model(library), library.RealtimeAgent(name="a"), None)
    read = 0

    async def reading() -> None:
        nonlocal read
        async for _ in session:
            read += 1

    async with session:
        reader = asyncio.ensure_future(reading())
        await session.on_event(library.RealtimeModelTurnStartedEvent(response_id="r"))
        gc.collect()
        start = time.process_time()
        for number in range(DELTAS // 2):
            await session.on_event(library.RealtimeModelAudioEvent(AUDIO, "r", "i", 0))
            await session.on_event(library.RealtimeModelTranscriptDeltaEvent("i", "word ", "r"))
            if number % 10 == 0:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        took = time.process_time() - start
        reader.cancel()
    assert read > DELTAS, "not everything was read"
    return took / DELTAS * 1e6


async def frames() -> dict[str, float]:
    """Microseconds at the median from a frame of the server to the session's events, by kind of delta."""
    session = ours.RealtimeSession(
        silent_model(ours), ours.RealtimeAgent(name="a"), None, run_config={"raw_server_events": False}
    )
    part = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0, "event_id": "e"}
    kinds = {
        "audio": {"type": "response.output_audio.delta", "delta": base64.b64encode(AUDIO).decode(), **part},
        "transcript": {"type": "response.output_audio_transcript.delta", "delta": "word ", **part},
    }
    found = {}
    async with session:
        client = RealtimeClient({})
        for kind, frame in kinds.items():
            data, times = json.dumps(frame).encode(), []
            for _ in range(DELTAS // 4):
                start = time.perf_counter_ns()
                for event in client.receive(data):
                    await session.on_event(event)
                times.append(time.perf_counter_ns() - start)
            found[kind] = statistics.median(times) / 1000
    return found


async def interruption() -> float:
    """Milliseconds from the call of interrupt() to the last audio of that response, at most, over a real socket."""
    worst = 0.0
    text = "a long answer that goes on and on " * 4
    async with RealtimeServer([text] * 10, voice=ToneVoice(), pace=20.0) as server:
        runner = ours.RealtimeRunner(ours.RealtimeAgent(name="a"))
        session = await runner.run(model_config={"url": server.url, "api_key": "bench"})
        last = 0.0
        playing = asyncio.Event()

        async def reading() -> None:
            nonlocal last
            async for event in session:
                if event.type == "audio":
                    last = time.perf_counter()
                    playing.set()

        async with session:
            reader = asyncio.ensure_future(reading())
            for _ in range(10):
                playing.clear()
                await session.send_message("go on")
                await playing.wait()
                await asyncio.sleep(0.02)
                called = time.perf_counter()
                await session.interrupt()
                await asyncio.sleep(0.02)
                worst = max(worst, (last - called) * 1000)
            reader.cancel()
    return worst


async def closing() -> float:
    """Seconds to close many calls that have all talked to one server."""
    async with RealtimeServer() as server:
        runner = ours.RealtimeRunner(ours.RealtimeAgent(name="a"))
        config: Any = {"url": server.url, "api_key": "bench"}
        sessions = [await runner.run(model_config=config) for _ in range(CALLS)]
        for start in range(0, CALLS, 50):
            await asyncio.gather(*(session.enter() for session in sessions[start : start + 50]))
        began = time.perf_counter()
        await asyncio.gather(*(session.close() for session in sessions))
        return time.perf_counter() - began


async def measured() -> list[Figure]:
    pairs = [(await stream(ours), await stream(peer)) for _ in range(5)]
    mine, other = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    figures = [at_least("event in a session, read", f"{mine:.1f} us", f"{other:.1f} us", other / mine, 3.0)]
    for kind, micro in (await frames()).items():
        figures.append(at_most(f"{kind} delta, frame to event", f"{micro:.1f} us", "10 us", micro / 10, 1.0))
    worst = await interruption()
    figures.append(at_most("last audio after interrupt()", f"{worst:.2f} ms", "5 ms", worst / 5, 1.0))
    seconds = await closing()
    figures.append(at_most(f"closing {CALLS} calls", f"{seconds:.2f} s", "2 s", seconds / 2, 1.0))
    return figures


def figures() -> list[Figure]:
    return asyncio.run(measured())
