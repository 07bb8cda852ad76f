"""Realtime sessions: the cost of a delta, memory of unread events, interruptions and closing of many calls."""

import asyncio
import base64
import gc
import json
import statistics
import time
import tracemalloc
from typing import Any

from bench.competitors.sessions import Sessions
from bench.environments import AGENTS, Command, measure_best
from bench.figures import Figure, at_least, at_most, not_compared
from bench.progress import show_progress
from bench.quick import pick_size
from bench.realtime_server import server_process
from standfast.realtime import RealtimeAgent, RealtimeModelAudioEvent, RealtimeRunner, RealtimeSession
from standfast.realtime.openai._protocol.client import RealtimeClient
from standfast.realtime.openai.codec import decode_message, prepend_raw_event
from standfast.realtime.openai.connection import ListenerRegistry

FRAMES, UNREAD, INTERRUPTIONS = 5_000, 10_000, 10
CALLS, TALKING = 500, 50
CHUNK_BYTES = 4800


def format_seconds(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def measure_medians() -> list[Figure]:
    """Compare the sessions of both libraries, each in its own process and environment, in turns."""
    commands: dict[str, Command] = {
        "standfast": (None, ("bench.competitors.sessions", "standfast")),
        "openai-agents": (AGENTS, ("bench.competitors.sessions", "agents")),
    }
    results = measure_best(commands, pick_size(3, 1))
    rows = []
    for key, name in (("event", "an event, read"), ("audio", "an audio delta"), ("transcript", "a transcript delta")):
        label, limit = f"{name}, compared with openai-agents", 3.0 if key == "event" else None
        ours, theirs = results["standfast"][key], results.get("openai-agents", {}).get(key)
        if theirs is None:
            rows.append(not_compared(label, format_seconds(ours), ">= 3x" if limit else ""))
        else:
            rows.append(at_least(label, format_seconds(ours), format_seconds(theirs), theirs / ours, limit))
    return rows


async def time_frames(kind: str, text: str) -> tuple[float, float]:
    """Return the median seconds from a frame of the server to the event at an iterator of the session, and the part of
    it that decodes JSON and base64. Raw events are included, which is the default of a session."""
    session = RealtimeSession(Sessions("standfast").make_silent_model(), RealtimeAgent(name="a"), None)
    event_type = {"audio": "audio", "audio_transcript": "transcript_delta"}[kind]
    part = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0, "event_id": "e"}
    frame = json.dumps({"type": f"response.output_{kind}.delta", "delta": text, **part}).encode()
    client, listeners = RealtimeClient({}), ListenerRegistry()
    listeners.add(session)
    total, decoding = [], []
    async with session:
        events = session.events()
        for _ in range(FRAMES):
            start = time.perf_counter_ns()
            decode_message(frame)
            started_at = time.perf_counter_ns()
            await listeners.notify(prepend_raw_event(frame, client.receive(frame)))
            while (await anext(events)).type != event_type:
                pass
            total.append(time.perf_counter_ns() - started_at)
            decoding.append(started_at - start)
    return statistics.median(total) / 1e9, statistics.median(decoding) / 1e9


async def measure_deltas() -> list[Figure]:
    audio = base64.b64encode(b"\0" * CHUNK_BYTES).decode()
    rows = []
    for name, kind, text in (("audio", "audio", audio), ("transcript", "audio_transcript", "word ")):
        total, decoding = min([await time_frames(kind, text) for _ in range(3)])
        own = total - decoding
        rows.append(at_most(f"{name} delta, from frame to reader", format_seconds(own), "10 us", own / 10e-6, 1.0))
        rows.append(
            Figure(
                "  ... with JSON and base64",
                format_seconds(total),
                format_seconds(decoding),
                round(total / decoding, 2),
                "",
                None,
            )
        )
    return rows


async def measure_unread() -> list[Figure]:
    """Measure the events and the memory that are kept of many unread deltas."""
    session = RealtimeSession(Sessions("standfast").make_silent_model(), RealtimeAgent(name="a"), None)
    async with session:
        gc.collect()
        tracemalloc.start()
        for number in range(UNREAD):
            await session.on_event(RealtimeModelAudioEvent(bytes([number % 256]) * CHUNK_BYTES, "r", "i", 0))
        memory, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        dropped = session.metrics.count_dropped_events()
    count = 2 * UNREAD - dropped
    return [
        at_most(f"events kept of {UNREAD:,} unread deltas", f"{count:,}", "2,100", count / 2100, 1.0),
        at_most("memory they take", f"{memory / 2**20:.1f} MiB", "8 MiB", memory / 2**23, 1.0),
    ]


async def measure_interruptions(url: str) -> list[Figure]:
    """Measure the time from interrupt() to the last delivered audio of its response, at worst, and the number of chunks
    that were delivered and that the server still sent. The latter must not be zero."""
    session = await RealtimeRunner(RealtimeAgent(name="a")).run(model_config={"url": url, "api_key": "bench"})
    delivered: dict[str, list[float]] = {}
    arrived: dict[str, list[float]] = {}
    playing: asyncio.Queue[str] = asyncio.Queue()
    ended = asyncio.Event()

    async def decoding() -> None:
        async for event in session.events():
            now = time.perf_counter()
            if event.type == "audio":
                name = event.audio.response_id
                if name not in delivered:
                    playing.put_nowait(name)
                delivered.setdefault(name, []).append(now)
            elif event.type == "raw_model_event" and event.data.type == "raw_server_event":
                message = event.data.data
                if message["type"] == "response.output_audio.delta":
                    arrived.setdefault(message["response_id"], []).append(now)
            elif event.type == "agent_end":
                ended.set()

    interrupted_at: dict[str, float] = {}
    async with session:
        reader = asyncio.ensure_future(decoding())
        for _ in range(INTERRUPTIONS):
            ended.clear()
            await session.send_message("go on")
            name = await playing.get()
            await asyncio.sleep(0.03)
            # Block the loop, so that audio waits in the socket when interrupt() is called.
            time.sleep(0.15)  # noqa: ASYNC251 - blocking the event loop is intended
            interrupted_at[name] = time.perf_counter()
            await session.interrupt()
            await ended.wait()
        # Late audio is recognised by its response, so one more answer is long enough to wait for it.
        await session.send_message("go on")
        await playing.get()
        reader.cancel()
    late = [at - interrupted_at[name] for name in interrupted_at for at in delivered[name] if at > interrupted_at[name]]
    sent = sum(at > interrupted_at[name] for name in interrupted_at for at in arrived[name])
    worst = max(late, default=0.0)
    return [
        at_most("last audio after interrupt()", f"{worst * 1000:.2f} ms", "5 ms", worst / 0.005, 1.0),
        Figure(
            "  ... chunks delivered / still sent",
            str(len(late)),
            str(sent),
            float(len(late)),
            "<= 0",
            not late and sent > 0,
        ),
    ]


async def format_summary(url: str) -> list[Figure]:
    """Measure the closing of many open calls, some of them in the middle of an answer."""
    runner = RealtimeRunner(RealtimeAgent(name="a"))
    config: Any = {"url": url, "api_key": "bench"}
    sessions = [await runner.run(model_config=config) for _ in range(CALLS)]
    for start in range(0, CALLS, 25):
        await asyncio.gather(*(session.enter() for session in sessions[start : start + 25]))
    await asyncio.gather(*(send_and_wait_for(session, "agent_end") for session in sessions))
    await asyncio.gather(*(send_and_wait_for(session, "audio") for session in sessions[:TALKING]))
    started_at = time.perf_counter()
    reports = await asyncio.gather(*(session.close() for session in sessions))
    seconds = time.perf_counter() - started_at
    unclean = sum(1 for report in reports if report is None or report.cancelled or report.still_running)
    return [
        at_most(f"closing {CALLS} calls, {TALKING} of them talking", f"{seconds:.2f} s", "2 s", seconds / 2, 1.0),
        Figure("  ... of which not closed cleanly", str(unclean), "0", float(unclean), "<= 0", unclean == 0),
    ]


async def send_and_wait_for(session: RealtimeSession, kind: str) -> None:
    await session.send_message("go on")
    async for event in session.events():
        if event.type == kind:
            return


async def measure() -> list[Figure]:
    show_progress("realtime: deltas, interruptions and many calls")
    rows = [*await measure_deltas(), *await measure_unread()]
    with server_process() as url:
        rows += await measure_interruptions(url)
    with server_process(greetings=CALLS) as url:
        rows += await format_summary(url)
    return rows


def figures() -> list[Figure]:
    return [*measure_medians(), *asyncio.run(measure())]
