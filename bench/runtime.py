"""Durable runs: what a turn costs when every step is stored first, beside langgraph with its SQLite checkpointer, and
what runs that wait cost the others."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.competitors.durable import LONG, TURNS
from bench.environments import AGENTS, Once, best_of
from bench.progress import tell
from bench.quick import pick
from bench.figures import Figure, at_least, at_most, compared, micro, without_peer
from standfast import Agent, Runtime, function_tool
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call

MODULE = "bench.competitors.durable"
RIVALS: dict[str, Once] = {
    "NORMAL": (None, (MODULE, "standfast", "NORMAL")),
    "FULL": (None, (MODULE, "standfast", "FULL")),
    "langgraph": (AGENTS, (MODULE, "langgraph")),
}
FEW, MANY, ROUNDS = 10, pick(1000, 100), pick(60, 10)


def turns(found: dict[str, dict[str, float]]) -> list[Figure]:
    rows, other = [], found.get("langgraph")
    for name in ("NORMAL", "FULL"):
        own, label = found[name], f"a durable turn with a tool, synchronous={name}, of {TURNS}, beside langgraph"
        if other is None:
            rows.append(without_peer(label, micro(own["turn"]), ">= 3x"))
            continue
        rows.append(at_least(label, micro(own["turn"]), micro(other["turn"]), other["turn"] / own["turn"], 3))
        texts, ratio = (micro(own["long turn"]), micro(other["long turn"])), other["long turn"] / own["long turn"]
        rows.append(compared(f"  ... of {LONG}", *texts, ratio))
    return rows + storage(found["NORMAL"], other)


def storage(own: dict[str, float], other: dict[str, float] | None) -> list[Figure]:
    """What a turn leaves on the disk, and that the later ones leave no more than the earlier."""
    size, further = own["bytes"], own["further bytes"]
    texts = "4 KB", "no peer"
    if other is not None:
        theirs = other["further bytes"] / other["bytes"]
        texts = kilobytes(other["bytes"]), f"{kilobytes(other['further bytes'])} ({theirs:.2f}x)"
    linear = f"  ... per turn beyond {TURNS}, over that: growth is linear"
    return [
        at_most(f"stored per turn of {LONG}, beside 4 KB", kilobytes(size), texts[0], size / 4096, 1),
        at_most(linear, kilobytes(further), texts[1], further / size, 1.1),
    ]


def kilobytes(size: float) -> str:
    return f"{size / 1024:.1f} KB"


# --- runs that wait -------------------------------------------------------------------------------


@asynccontextmanager
async def waiting(number: int, folder: Path) -> AsyncIterator[Runtime]:
    """A runtime with so many runs that wait for a person."""

    def answer(call: Any) -> list[Any]:
        asked = call.input[-1].get("role") == "user"
        return [function_call("refund", {"order": "7"}, call_id="c1")] if asked else [assistant_message("done")]

    @function_tool(needs_approval=True)
    async def refund(order: str) -> str:
        return f"refunded {order}"

    script = ScriptedModel([ModelStep.respond(answer) for _ in range(3 * number + 10 * ROUNDS)])
    agent: Agent[Any] = Agent("support", tools=[refund], model=script)
    async with Runtime.open(f"sqlite:///{folder / f'{number}.db'}", agents=[agent]) as runtime:
        for _ in range(number):
            await ask(runtime)
        yield runtime


async def ask(runtime: Runtime) -> None:
    run = await runtime.start("support", "refund 7", session_id=f"s{time.monotonic_ns()}")
    await run.wait()


async def answered(runtime: Runtime) -> tuple[float, float, float]:
    """Seconds of listing questions, of answering one, and of the run that goes on with it."""
    begin = time.perf_counter()
    [asked, *_] = await runtime.approvals(status="pending", limit=5)
    listed = time.perf_counter()
    await runtime.decide(asked.id, "approve")
    decided = time.perf_counter()
    outcome = await (await runtime.resume(asked.run_id)).wait()
    ended = time.perf_counter()
    assert outcome.final_output == "done"
    await ask(runtime)
    return listed - begin, decided - listed, ended - decided


async def waits() -> list[Figure]:
    """What one answer costs while many wait, beside few; they take turns, so that noise falls on both alike."""
    with tempfile.TemporaryDirectory() as place:
        async with waiting(FEW, Path(place)) as few, waiting(MANY, Path(place)) as many:
            rounds: dict[int, list[tuple[float, float, float]]] = {FEW: [], MANY: []}
            for turn in range(ROUNDS):
                pair = [(FEW, few), (MANY, many)]
                for number, runtime in pair if turn % 2 else reversed(pair):
                    rounds[number].append(await answered(runtime))
    rows = []
    for step, name in enumerate(("listing five questions", "answering one", "the run going on to its end")):
        # A quarter of the rounds was faster: what else the machine does in a round says nothing about it.
        less, more = (statistics.quantiles([times[step] for times in rounds[number]])[0] for number in (FEW, MANY))
        rows.append(at_most(f"{name}, {MANY} waiting over {FEW}", micro(more), micro(less), more / less, 1.3))
    return rows


def figures() -> list[Figure]:
    rows = turns(best_of(RIVALS, pick(2, 1)))
    tell(f"runtime: {MANY} runs that wait")
    return rows + asyncio.run(waits())
