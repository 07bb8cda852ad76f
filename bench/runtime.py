"""Durable runs: the cost of a turn whose steps are all stored, compared with langgraph and its SQLite checkpointer, and
the cost of waiting runs for others."""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.competitors.durable import LONG, TURNS
from bench.environments import AGENTS, Command, measure_best
from bench.figures import Figure, at_least, at_most, format_seconds, not_compared, without_target
from bench.progress import show_progress
from bench.quick import pick_size
from standfast import Agent, Runtime, function_tool
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call

MODULE = "bench.competitors.durable"
COMMANDS: dict[str, Command] = {
    "NORMAL": (None, (MODULE, "standfast", "NORMAL")),
    "FULL": (None, (MODULE, "standfast", "FULL")),
    "langgraph": (AGENTS, (MODULE, "langgraph")),
}
FEW, MANY, ROUNDS = 10, pick_size(1000, 100), pick_size(60, 10)


def build_turn_figures(results: dict[str, dict[str, float]]) -> list[Figure]:
    rows, other = [], results.get("langgraph")
    for name in ("NORMAL", "FULL"):
        own, label = (
            results[name],
            f"a durable turn with a tool, synchronous={name}, of {TURNS}, compared with langgraph",
        )
        if other is None:
            rows.append(not_compared(label, format_seconds(own["turn"]), ">= 3x"))
            continue
        rows.append(
            at_least(label, format_seconds(own["turn"]), format_seconds(other["turn"]), other["turn"] / own["turn"], 3)
        )
        texts, ratio = (
            (format_seconds(own["long turn"]), format_seconds(other["long turn"])),
            other["long turn"] / own["long turn"],
        )
        rows.append(without_target(f"  ... of {LONG}", *texts, ratio))
    return rows + build_storage_figures(results["NORMAL"], other)


def build_storage_figures(own: dict[str, float], other: dict[str, float] | None) -> list[Figure]:
    """Return the figures of the stored bytes per turn, and of their growth in later turns."""
    size, further = own["bytes"], own["further bytes"]
    texts = "4 KB", "unavailable"
    if other is not None:
        theirs = other["further bytes"] / other["bytes"]
        texts = format_kilobytes(other["bytes"]), f"{format_kilobytes(other['further bytes'])} ({theirs:.2f}x)"
    linear = f"  ... per turn beyond {TURNS}, over that: growth is linear"
    return [
        at_most(f"stored per turn of {LONG}, compared with 4 KB", format_kilobytes(size), texts[0], size / 4096, 1),
        at_most(linear, format_kilobytes(further), texts[1], further / size, 1.1),
    ]


def format_kilobytes(size: float) -> str:
    return f"{size / 1024:.1f} KB"


# --- waiting runs ---------------------------------------------------------------------------------


@asynccontextmanager
async def open_runtime_with_waiting_runs(number: int, folder: Path) -> AsyncIterator[Runtime]:
    """Open a runtime with this many runs that wait for an approval."""

    def answer(call: Any) -> list[Any]:
        is_question = call.input[-1].get("role") == "user"
        return [function_call("refund", {"order": "7"}, call_id="c1")] if is_question else [assistant_message("done")]

    @function_tool(needs_approval=True)
    async def refund(order: str) -> str:
        return f"refunded {order}"

    script = ScriptedModel([ModelStep.respond(answer) for _ in range(3 * number + 10 * ROUNDS)])
    agent: Agent[Any] = Agent("support", tools=[refund], model=script)
    async with Runtime.open(f"sqlite:///{folder / f'{number}.db'}", agents=[agent]) as runtime:
        for _ in range(number):
            await start_waiting_run(runtime)
        yield runtime


async def start_waiting_run(runtime: Runtime) -> None:
    run = await runtime.start("support", "refund 7", session_id=f"s{time.monotonic_ns()}")
    await run.wait()


async def time_decision(runtime: Runtime) -> tuple[float, float, float]:
    """Return the seconds of listing approvals, of deciding one, and of the resumed run."""
    start = time.perf_counter()
    [approval, *_] = await runtime.approvals(status="pending", limit=5)
    listed = time.perf_counter()
    await runtime.decide(approval.id, "approve")
    decided = time.perf_counter()
    outcome = await (await runtime.resume(approval.run_id)).wait()
    ended = time.perf_counter()
    assert outcome.final_output == "done"
    await start_waiting_run(runtime)
    return listed - start, decided - listed, ended - decided


async def measure_waiting_runs() -> list[Figure]:
    """Compare a decision while many runs wait with one while few wait; they take turns."""
    with tempfile.TemporaryDirectory() as folder:
        async with (
            open_runtime_with_waiting_runs(FEW, Path(folder)) as few,
            open_runtime_with_waiting_runs(MANY, Path(folder)) as many,
        ):
            rounds: dict[int, list[tuple[float, float, float]]] = {FEW: [], MANY: []}
            for turn in range(ROUNDS):
                pair = [(FEW, few), (MANY, many)]
                for number, runtime in pair if turn % 2 else reversed(pair):
                    rounds[number].append(await time_decision(runtime))
    rows = []
    for step, name in enumerate(("listing five approvals", "deciding one", "the resumed run")):
        # The lower quartile: other work of the machine affects it least.
        less, more = (statistics.quantiles([times[step] for times in rounds[number]])[0] for number in (FEW, MANY))
        rows.append(
            at_most(f"{name}, {MANY} waiting over {FEW}", format_seconds(more), format_seconds(less), more / less, 1.3)
        )
    return rows


def figures() -> list[Figure]:
    rows = build_turn_figures(measure_best(COMMANDS, pick_size(2, 1)))
    show_progress(f"runtime: {MANY} waiting runs")
    return rows + asyncio.run(measure_waiting_runs())
