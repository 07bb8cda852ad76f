"""``standfast serve``: runs over HTTP, many open event streams, and connections that are cut."""

import asyncio
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure, at_most, figure_with_limit, format_seconds, percentile, without_target
from bench.progress import show_progress
from bench.quick import pick_size
from standfast import Agent, FunctionModel
from standfast.client import Client

CLIENTS, RUNS = pick_size(100, 10), pick_size(2000, 40)
STREAMS, WORDS, PACE = pick_size(1000, 50), pick_size(200, 20), 0.05
SIDE_RUNS = pick_size(200, 10)
CUTS = pick_size(2000, 50)


class Speaker(FunctionModel):
    """Says words at a pace; each word is the time at which it is said."""

    async def stream(self, request):  # type: ignore[no-untyped-def]
        from bench.live import Speaker as Timed

        async for event in Timed(WORDS, PACE).stream(request):
            yield event


instant = Agent("instant", model=FunctionModel(lambda request: "done"))
speaker = Agent("speaker", model=Speaker(lambda request: "unused"))


@dataclass
class Served:
    """A server in a process of its own."""

    url: str
    token: str
    pid: int

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def read_memory(self) -> int:
        """Return the resident bytes of the process."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def serve() -> AsyncIterator[Served]:
    with tempfile.TemporaryDirectory() as folder:
        arguments = (
            "-m",
            "standfast",
            "serve",
            "bench.server:instant",
            "bench.server:speaker",
            "--port",
            "0",
            "--rate-limit",
            "1e6",
        )
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *arguments, "--store", f"sqlite:///{folder}/bench.db"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout is not None
        found = re.fullmatch(r"(http://[^/]+)/\?token=(\S+)\n", (await process.stdout.readline()).decode())
        assert found is not None
        try:
            yield Served(found[1], found[2], process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def send_request(
    served: Served, method: str, path: str, body: object = None, **headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request on a connection of its own; a client library would take more time than the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=2**20)
    data = b"" if body is None else json.dumps(body).encode()
    fields = {
        "host": "127.0.0.1",
        "authorization": f"Bearer {served.token}",
        "content-type": "application/json",
        "content-length": str(len(data)),
        "connection": "close",
    } | headers
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    return reader, writer


async def read_answer(served: Served, method: str, path: str, body: object = None) -> bytes:
    reader, writer = await send_request(served, method, path, body)
    answer = await reader.read()
    writer.close()
    return answer


async def run_once(served: Served, agent: str) -> float:
    """Start a run and read its events to the end; return the seconds."""
    start = time.perf_counter()
    answer = await read_answer(served, "POST", "/runs", {"agent": agent, "input": "go"})
    found = re.search(rb'"run_id":"(\w+)"', answer)
    assert found is not None, answer
    events = await read_answer(served, "GET", f"/runs/{found[1].decode()}/events")
    assert b"event: end" in events, events
    return time.perf_counter() - start


async def measure_runs(served: Served) -> list[Figure]:
    await run_once(served, "instant")
    pending, taken = iter(range(RUNS)), list[float]()

    async def work() -> None:
        for _ in pending:
            taken.append(await run_once(served, "instant"))

    start = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(CLIENTS)))
    rate = RUNS / (time.perf_counter() - start)
    median, p99 = statistics.median(taken), percentile(taken, 0.99)
    label = f"{RUNS} runs over HTTP to their ends, {CLIENTS} clients"
    return [
        Figure(f"{label}: per second", f"{rate:.0f}", "", None, "", None),
        at_most(f"{label}: p99 over p50", format_seconds(p99), format_seconds(median), p99 / median, 5.0),
    ]


async def follow_words(served: Served, run_id: str, delays: list[float], opened: asyncio.Semaphore) -> None:
    reader, writer = await send_request(served, "GET", f"/runs/{run_id}/events")
    opened.release()
    while line := await reader.readline():
        if line.startswith(b"data: ") and b"output_text.delta" in line:
            delays.append(time.time() - float(json.loads(line[6:])["data"]["delta"]))
    writer.close()


async def measure_streams(served: Served) -> list[Figure]:
    """Open many streams of one run; other runs go on meanwhile."""
    show_progress(f"server: {STREAMS} streams")
    before = served.read_memory()
    alone = [await run_once(served, "instant") for _ in range(SIDE_RUNS // 4)]
    answer = await read_answer(served, "POST", "/runs", {"agent": "speaker", "input": "go"})
    run_id = re.search(rb'"run_id":"(\w+)"', answer)[1].decode()  # type: ignore[index]
    delays, opened = list[float](), asyncio.Semaphore(0)
    readers = [asyncio.create_task(follow_words(served, run_id, delays, opened)) for _ in range(STREAMS)]
    for _ in range(STREAMS):
        await opened.acquire()
    beside = [await run_once(served, "instant") for _ in range(SIDE_RUNS // 4)]
    memory = (served.read_memory() - before) / STREAMS
    await asyncio.gather(*readers)
    later = delays[len(delays) // 2 :]  # without those that were said before all had come
    return [
        figure_with_limit(f"words to {STREAMS} streams of one process, p95", percentile(later, 0.95) * 1000, 250.0),
        figure_with_limit("  ... memory per stream", memory / 1000, 100.0, "KB"),
        without_target(
            "  ... a run beside them over one alone",
            format_seconds(statistics.median(beside)),
            format_seconds(statistics.median(alone)),
            statistics.median(beside) / statistics.median(alone),
        ),
    ]


async def measure_cuts(served: Served) -> list[Figure]:
    """Cut the connections of one reader at random until it has everything; compare with the journal."""
    show_progress(f"server: {CUTS} cut connections")
    chance, received, cuts, wrong = random.Random(1), 0, 0, 0
    while cuts < CUTS:
        answer = await read_answer(served, "POST", "/runs", {"agent": "instant", "input": "go"})
        run_id = re.search(rb'"run_id":"(\w+)"', answer)[1].decode()  # type: ignore[index]
        numbers, last, is_complete = list[int](), "0", False
        while not is_complete:
            reader, writer = await send_request(served, "GET", f"/runs/{run_id}/events", **{"last-event-id": last})
            budget, event_id = chance.randrange(1, 12), ""
            while line := await reader.readline():
                if line == b"\n":
                    event_id = ""
                elif line.startswith(b"id: "):
                    event_id = line[4:].strip().decode()
                elif line.startswith(b"event: end"):
                    is_complete = True
                elif line.startswith(b"data: ") and event_id:
                    last = event_id
                    numbers += [int(event_id)] if event_id.isdigit() else []
                    budget -= 1
                    if budget == 0:
                        break
            writer.transport.abort()
            cuts += 1
        async with Client(served.url, token=served.token) as client:
            steps = (await client.get_run_info(run_id)).steps
        wrong += numbers != list(range(1, steps + 1))
        received += len(numbers)
    label = f"events lost or repeated over {cuts} cut connections, of {received}"
    return [Figure(label, str(wrong), "0", None, "0", wrong == 0)]


async def measure() -> list[Figure]:
    async with serve() as served:
        return [*await measure_runs(served), *await measure_streams(served), *await measure_cuts(served)]


def figures() -> list[Figure]:
    show_progress(f"server: {RUNS} runs")
    return asyncio.run(measure())
