"""Realtime sessions: what a delta costs, what is kept for nobody, how fast interruptions and the end of calls are."""

import asyncio
import base64
import gc
import json
import statistics
import time
import tracemalloc
from typing import Any

from bench.competitors.sessions import Sessions
from bench.environments import AGENTS, Once, best_of
from bench.progress import tell
from bench.quick import pick
from bench.realtime_server import server_process
from bench.figures import Figure, at_least, at_most, without_peer
from standfast.realtime import RealtimeAgent, RealtimeModelAudioEvent, RealtimeRunner, RealtimeSession
from standfast.realtime.openai._protocol.client import RealtimeClient
from standfast.realtime.openai._protocol.codec import decode_message, prepend_raw_event
from standfast.realtime.openai.listeners import ListenerRegistry

FRAMES, UNREAD, INTERRUPTIONS = 5_000, 10_000, 10
CALLS, TALKING = 500, 50
PIECE = 4800


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def side_by_side() -> list[Figure]:
    """Ours and theirs, each in its own process and environment, taking turns."""
    rivals: dict[str, Once] = {
        "standfast": (None, ("bench.competitors.sessions", "standfast")),
        "openai-agents": (AGENTS, ("bench.competitors.sessions", "agents")),
    }
    found = best_of(rivals, pick(3, 1))
    rows = []
    for key, name in (("event", "an event, read"), ("audio", "an audio delta"), ("transcript", "a transcript delta")):
        label, limit = f"{name}, beside openai-agents", 3.0 if key == "event" else None
        ours, theirs = found["standfast"][key], found.get("openai-agents", {}).get(key)
        if theirs is None:
            rows.append(without_peer(label, micro(ours), ">= 3x" if limit else ""))
        else:
            rows.append(at_least(label, micro(ours), micro(theirs), theirs / ours, limit))
    return rows


async def frames(kind: str, text: str) -> tuple[float, float]:
    """Seconds at the median from a frame of the server to the event in the hands of whoever iterates, and the part
    of it that JSON and base64 take. The session tells raw messages, too, as it does unless told otherwise."""
    session = RealtimeSession(Sessions("standfast").silent_model(), RealtimeAgent(name="a"), None)
    wanted = {"audio": "audio", "audio_transcript": "transcript_delta"}[kind]
    part = {"response_id": "r", "item_id": "i", "output_index": 0, "content_index": 0, "event_id": "e"}
    frame = json.dumps({"type": f"response.output_{kind}.delta", "delta": text, **part}).encode()
    client, audience = RealtimeClient({}), ListenerRegistry()
    audience.add(session)
    whole, reading = [], []
    async with session:
        events = aiter(session)
        for _ in range(FRAMES):
            start = time.perf_counter_ns()
            decode_message(frame)
            begun = time.perf_counter_ns()
            await audience.notify(prepend_raw_event(frame, client.receive(frame)))
            while (await anext(events)).type != wanted:
                pass
            whole.append(time.perf_counter_ns() - begun)
            reading.append(begun - start)
    return statistics.median(whole) / 1e9, statistics.median(reading) / 1e9


async def costs() -> list[Figure]:
    audio = base64.b64encode(b"\0" * PIECE).decode()
    rows = []
    for name, kind, text in (("audio", "audio", audio), ("transcript", "audio_transcript", "word ")):
        whole, reading = min([await frames(kind, text) for _ in range(3)])
        own = whole - reading
        rows.append(at_most(f"{name} delta, from its frame to its reader", micro(own), "10 us", own / 10e-6, 1.0))
        rows.append(
            Figure("  ... with JSON and base64", micro(whole), micro(reading), round(whole / reading, 2), "", None)
        )
    return rows


async def unread() -> list[Figure]:
    """What is kept of many deltas that nobody reads."""
    session = RealtimeSession(Sessions("standfast").silent_model(), RealtimeAgent(name="a"), None)
    async with session:
        gc.collect()
        tracemalloc.start()
        for number in range(UNREAD):
            await session.on_event(RealtimeModelAudioEvent(bytes([number % 256]) * PIECE, "r", "i", 0))
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        lost = session.metrics.dropped_events()
    count = 2 * UNREAD - lost
    return [
        at_most(f"events kept of {UNREAD:,} unread deltas", f"{count:,}", "2,100", count / 2100, 1.0),
        at_most("memory they take", f"{kept / 2**20:.1f} MiB", "8 MiB", kept / 2**23, 1.0),
    ]


async def interruption(url: str) -> list[Figure]:
    """From the call of interrupt() to the last audio of that response that anybody was given, at worst; and how many
    pieces were given of those that the server still sent. That there were such pieces is part of the figure."""
    session = await RealtimeRunner(RealtimeAgent(name="a")).run(model_config={"url": url, "api_key": "bench"})
    given: dict[str, list[float]] = {}
    arrived: dict[str, list[float]] = {}
    playing: asyncio.Queue[str] = asyncio.Queue()
    over = asyncio.Event()

    async def reading() -> None:
        async for event in session:
            now = time.perf_counter()
            if event.type == "audio":
                name = event.audio.response_id
                if name not in given:
                    playing.put_nowait(name)
                given.setdefault(name, []).append(now)
            elif event.type == "raw_model_event" and event.data.type == "raw_server_event":
                message = event.data.data
                if message["type"] == "response.output_audio.delta":
                    arrived.setdefault(message["response_id"], []).append(now)
            elif event.type == "agent_end":
                over.set()

    called: dict[str, float] = {}
    async with session:
        reader = asyncio.ensure_future(reading())
        for _ in range(INTERRUPTIONS):
            over.clear()
            await session.send_message("go on")
            name = await playing.get()
            await asyncio.sleep(0.03)
            # Nothing is read meanwhile, so that audio waits in the socket when interrupt() is called.
            time.sleep(0.15)  # noqa: ASYNC251 - the loop itself has to stand still
            called[name] = time.perf_counter()
            await session.interrupt()
            await over.wait()
        # What comes late is told by its response, so one more answer is long enough to wait for it.
        await session.send_message("go on")
        await playing.get()
        reader.cancel()
    late = [at - called[name] for name in called for at in given[name] if at > called[name]]
    sent = sum(at > called[name] for name in called for at in arrived[name])
    worst = max(late, default=0.0)
    return [
        at_most("last audio after interrupt()", f"{worst * 1000:.2f} ms", "5 ms", worst / 0.005, 1.0),
        Figure(
            "  ... pieces given / still sent",
            str(len(late)),
            str(sent),
            float(len(late)),
            "<= 0",
            not late and sent > 0,
        ),
    ]


async def closing(url: str) -> list[Figure]:
    """Many live calls that were all answered, some in the middle of another answer, until all of them are over."""
    runner = RealtimeRunner(RealtimeAgent(name="a"))
    config: Any = {"url": url, "api_key": "bench"}
    sessions = [await runner.run(model_config=config) for _ in range(CALLS)]
    for start in range(0, CALLS, 25):
        await asyncio.gather(*(session.enter() for session in sessions[start : start + 25]))
    await asyncio.gather(*(_until(session, "agent_end") for session in sessions))
    await asyncio.gather(*(_until(session, "audio") for session in sessions[:TALKING]))
    began = time.perf_counter()
    reports = await asyncio.gather(*(session.close() for session in sessions))
    seconds = time.perf_counter() - began
    cut = sum(1 for report in reports if report is None or report.cancelled or report.still_running)
    return [
        at_most(f"closing {CALLS} calls, {TALKING} of them talking", f"{seconds:.2f} s", "2 s", seconds / 2, 1.0),
        Figure("  ... of which not in order", str(cut), "0", float(cut), "<= 0", cut == 0),
    ]


async def _until(session: RealtimeSession, kind: str) -> None:
    await session.send_message("go on")
    async for event in session:
        if event.type == kind:
            return


async def measured() -> list[Figure]:
    tell("realtime: deltas, interruptions and many calls")
    rows = [*await costs(), *await unread()]
    with server_process() as url:
        rows += await interruption(url)
    with server_process(greetings=CALLS) as url:
        rows += await closing(url)
    return rows


def figures() -> list[Figure]:
    return [*side_by_side(), *asyncio.run(measured())]
