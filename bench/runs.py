"""Runs: what a turn and a snapshot cost, against openai-agents, with a model that answers at once."""

import asyncio
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import agents as peer
from agents.testing import assistant_message as peer_message
from agents.testing import function_call as peer_call

import holdfast
from bench.rows import Figure, at_least, at_most, micro
from holdfast.testing import assistant_message, function_call

SHORT, LONG, EXCHANGES = 10, 400, 500


def instant(library: Any, steps: Iterator[list[Any]]) -> Any:
    """A model of either library that answers with the next step and keeps nothing."""

    class Instant(library.Model):  # type: ignore[misc]
        async def get_response(self, *_: Any, **__: Any) -> Any:
            usage = library.Usage(requests=1, input_tokens=1, output_tokens=1, total_tokens=2)
            return library.ModelResponse(output=next(steps), usage=usage, response_id="r")

        def stream_response(self, *_: Any, **__: Any) -> Any:
            raise NotImplementedError

    return Instant()


def words(library: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (function_call, assistant_message) if library is holdfast else (peer_call, peer_message)


def worker(library: Any, turns: int, *, approval: bool = False) -> Any:
    """An agent that calls a trivial tool in every turn but the last, for one run."""
    call, message = words(library)

    @library.function_tool
    async def add(a: int, b: int) -> int:
        return a + b

    @library.function_tool(needs_approval=True)
    async def ask() -> str:
        return "yes"

    steps = [[call("add", {"a": 1, "b": 2}, call_id=f"call_{turn}")] for turn in range(turns - 1)]
    last = call("ask", {}, call_id="last") if approval else message("done")
    return library.Agent("worker", tools=[add, ask], model=instant(library, iter([*steps, [last]])))


async def timed(library: Any, turns: int, session: Any = None) -> float:
    """Seconds per turn of one run, in processor time."""
    agent = worker(library, turns)
    gc.collect()
    start = time.process_time()
    await library.Runner.run(agent, "go", max_turns=turns + 1, session=session)
    return (time.process_time() - start) / turns


async def side_by_side(rounds: int, measure: Callable[[Any], Awaitable[float]]) -> tuple[float, float]:
    """The best of some rounds for us and for the peer, taken in turns."""
    times: dict[Any, list[float]] = {holdfast: [], peer: []}
    for _ in range(rounds):
        for library, found in times.items():
            found.append(await measure(library))
    return min(times[holdfast]), min(times[peer])


def session_for(library: Any, folder: Path, name: str) -> Any:
    return library.SQLiteSession(name, folder / f"{library.__name__}.db")


async def turns(folder: Path) -> list[Figure]:
    figures = []
    for label, stored in (("no session", False), ("SQLite session", True)):
        count = iter(range(1000))

        async def measured(library: Any, turns: int, stored: bool = stored, count: Iterator[int] = count) -> float:
            session = session_for(library, folder, f"s{next(count)}") if stored else None
            if session is not None:
                await session.get_items()  # opening the file is no part of a turn
            return await timed(library, turns, session)

        short = await side_by_side(5, lambda library: measured(library, SHORT))
        long = await side_by_side(2, lambda library: measured(library, LONG))
        figures += [
            at_least(f"a turn of {SHORT}, {label}", micro(short[0]), micro(short[1]), short[1] / short[0], 5),
            at_least(f"a turn of {LONG}, {label}", micro(long[0]), micro(long[1]), long[1] / long[0], 30),
            at_most(
                f"ours, {LONG} turns over {SHORT}, {label}", micro(long[0]), micro(short[0]), long[0] / short[0], 1.3
            ),
        ]
    return figures


async def exchanges(folder: Path) -> list[Figure]:
    """One run after the other in one session: the first ones against the 500th."""
    taken: dict[Any, list[float]] = {}
    for library in (holdfast, peer):
        _, message = words(library)
        session = session_for(library, folder, "long")
        found = taken[library] = []
        for _ in range(EXCHANGES):
            agent = library.Agent("a", model=instant(library, iter([[message("yes")]])))
            start = time.process_time()
            await library.Runner.run(agent, "and then?", session=session)
            found.append(time.process_time() - start)
    ours, theirs = (min(taken[library][-20:]) for library in (holdfast, peer))
    first = min(taken[holdfast][5:25])
    return [
        at_least(f"exchange {EXCHANGES} of a conversation", micro(ours), micro(theirs), ours and theirs / ours, 30),
        at_most(f"ours, exchange {EXCHANGES} over the first", micro(ours), micro(first), ours / first, 1.3),
    ]


async def snapshots() -> list[Figure]:
    sizes: dict[Any, int] = {}

    async def measure(library: Any) -> float:
        agent = worker(library, 100, approval=True)
        result = await library.Runner.run(agent, "go", max_turns=101)
        state = result.to_state()
        sizes[library] = len(state.to_string())
        gc.collect()
        start = time.process_time()
        await library.RunState.from_json(agent, state.to_json())
        return time.process_time() - start

    ours, theirs = await side_by_side(3, measure)
    small, big = sizes[holdfast], sizes[peer]
    return [
        at_least("to_json and from_json of 100 turns", micro(ours), micro(theirs), theirs / ours, 10),
        at_most("bytes of a snapshot of 100 turns", f"{small:,}", f"{big:,}", small / big, 1 / 3),
    ]


def importing() -> Figure:
    code = "import time; t = time.perf_counter(); import holdfast; holdfast.Runner; print(time.perf_counter() - t)"
    taken = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in range(3)
    )
    return at_most("import holdfast; holdfast.Runner", f"{taken:.2f} s", "0.3 s", taken / 0.3, 1)


def figures() -> list[Figure]:
    peer.set_tracing_disabled(True)

    async def everything() -> list[Figure]:
        with tempfile.TemporaryDirectory() as folder:
            return [*await turns(Path(folder)), *await exchanges(Path(folder)), *await snapshots(), importing()]

    return asyncio.run(everything())
