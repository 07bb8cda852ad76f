"""Runs: the cost of a turn and of a snapshot, compared with openai-agents, pydantic-ai and langgraph, with a model that
answers at once. Targets refer to openai-agents; the others are reported."""

import sys
import time
from collections.abc import Iterable
from typing import Any

from bench.competitors.agent_library import EXCHANGES, LENGTHS, LONG, SHORT, SNAPSHOT
from bench.environments import AGENTS, Competitor, CompetitorUnavailable, start_competitors
from bench.figures import Figure, Series, at_least, at_most, format_seconds, not_compared, without_target
from bench.progress import show_progress
from bench.quick import is_quick, pick_size

OURS, REFERENCE = "standfast", "openai-agents"
COMPETITORS = {
    REFERENCE: (AGENTS, ("bench.competitors.runners", "agents")),
    "pydantic-ai": (AGENTS, ("bench.competitors.pydantic_ai",)),
    "langgraph": (AGENTS, ("bench.competitors.langgraph",)),
}
STORES = {"no session": "", "SQLite": " stored"}
ROUNDS = pick_size(5, 2)
# Seconds of one figure of one library, after which it is not measured more often than MIN_ROUNDS, or once.
ENOUGH_SECONDS = pick_size(5.0, 1.0)
MIN_ROUNDS = {OURS: pick_size(2, 1), REFERENCE: pick_size(2, 1)}
# Seconds of one round, after which a library without targets gets no longer runs.
SLOW_ROUND = pick_size(30.0, 5.0)
Results = dict[str, dict[str, float]]


class Measurements:
    """The best figures of all libraries over rounds in which they take turns. A library that fails is dropped."""

    def __init__(self, libraries: dict[str, Competitor]) -> None:
        self.libraries = libraries
        self.results: Results = {name: {} for name in libraries}
        self.slow: set[str] = set()

    def measure(self, keys: tuple[str, ...], operation: str, *, plotted: bool = False, **arguments: Any) -> None:
        """Measure one figure in rounds; a slow library is measured once if the figure is only plotted."""
        spent = dict.fromkeys(self.libraries, 0.0)
        for number in range(ROUNDS):
            for name in [name for name in self.libraries if name not in self.slow]:
                if number >= (1 if plotted else MIN_ROUNDS.get(name, 1)) and spent[name] > ENOUGH_SECONDS:
                    continue
                show_progress(f"runs: {' and '.join(keys) or operation}, round {number + 1} of {ROUNDS}, {name}")
                start = time.perf_counter()
                self.ask(name, keys, operation, arguments)
                seconds = time.perf_counter() - start
                spent[name] += seconds
                if seconds > SLOW_ROUND and name not in MIN_ROUNDS:
                    show_progress(f"runs: skipping longer runs of {name}, which took {seconds:.0f} s")
                    self.slow.add(name)

    def ask(self, name: str, keys: tuple[str, ...], operation: str, arguments: dict[str, Any]) -> None:
        try:
            result = self.libraries[name].ask(operation, **arguments)
        except CompetitorUnavailable as error:
            if name == OURS:
                raise
            show_progress(f"continuing without {name}: {error}")
            del self.libraries[name]
            return
        if result is not None:
            best = self.results[name]
            for key, value in zip(keys, result if isinstance(result, list) else [result], strict=True):
                best[key] = min(value, best.get(key, value))


def measure() -> Results:
    with (
        start_competitors(COMPETITORS) as competitors,
        Competitor.start(OURS, sys.executable, "bench.competitors.runners", OURS) as ours,
    ):
        rounds = Measurements({OURS: ours, **competitors})
        rounds.measure((), "warm")
        for suffix in STORES.values():
            rounds.slow.clear()
            for turns in LENGTHS:
                plotted = turns not in (SHORT, LONG)
                rounds.measure((f"turn {turns}{suffix}",), "turn", plotted=plotted, turns=turns, stored=bool(suffix))
        rounds.measure(("first exchange", "exchange"), "exchanges")
        rounds.slow.clear()
        rounds.measure(("snapshot", "bytes"), "snapshot")
        rounds.measure(("import", "import, processor time"), "import_time")
        return rounds.results


def get_target(limit: float) -> float | None:
    """Return the target, which applies to the full sizes only."""
    return None if is_quick() else limit


def build_comparison(results: Results, key: str, name: str, limit: float | None) -> Iterable[Figure]:
    """Yield one figure for each library that has it; the reference has a target."""
    ours = results[OURS][key]
    if key not in results.get(REFERENCE, {}):
        yield not_compared(f"{name}, compared with {REFERENCE}", format_seconds(ours), f">= {limit}x" if limit else "")
    for library, figures in results.items():
        if library == OURS or key not in figures:
            continue
        texts, ratio = (format_seconds(ours), format_seconds(figures[key])), figures[key] / ours
        if library == REFERENCE:
            yield at_least(f"{name}, compared with {library}", *texts, ratio, limit)
        else:
            yield without_target(f"  ... compared with {library}", *texts, ratio)


def build_growth(results: Results, key: str, base: str, name: str) -> Iterable[Figure]:
    """Yield the growth of our figure, which has a target, and of the others."""
    for library, figures in results.items():
        if key not in figures:
            continue
        texts, ratio = (format_seconds(figures[key]), format_seconds(figures[base])), figures[key] / figures[base]
        if library == OURS:
            yield at_most(f"{name}, ours", *texts, ratio, get_target(1.3))
        else:
            yield without_target(f"  ... {library}'s own", *texts, ratio)


def build_series(results: Results) -> Iterable[Series]:
    """Yield the data of the plot: the cost of a turn by the length of the run."""
    for label, suffix in STORES.items():
        for library, figures in results.items():
            at = tuple(turns for turns in LENGTHS if f"turn {turns}{suffix}" in figures)
            if at:
                yield Series(f"a turn, {label}", library, at, tuple(figures[f"turn {turns}{suffix}"] for turns in at))


def figures() -> Iterable[Figure | Series]:
    results = measure()
    yield from build_series(results)
    for label, suffix in STORES.items():
        short, long = f"turn {SHORT}{suffix}", f"turn {LONG}{suffix}"
        yield from build_comparison(results, short, f"a turn of {SHORT}, {label}", 5)
        yield from build_comparison(results, long, f"a turn of {LONG}, {label}", get_target(30))
        yield from build_growth(results, long, short, f"{LONG} turns over {SHORT}, {label}")
    yield from build_comparison(results, "exchange", f"exchange {EXCHANGES} of a conversation", get_target(30))
    yield from build_growth(results, "exchange", "first exchange", f"exchange {EXCHANGES} over the first")
    yield from build_comparison(results, "snapshot", f"to_json and from_json of {SNAPSHOT} turns", get_target(10))
    yield build_size_figure(results)
    yield from build_import_figures(results)


def build_size_figure(results: Results) -> Figure:
    name, small = f"bytes of a snapshot of {SNAPSHOT} turns, compared with {REFERENCE}", int(results[OURS]["bytes"])
    big = int(results.get(REFERENCE, {}).get("bytes", 0))
    if not big:
        return not_compared(name, f"{small:,}", "<= 0.333x")
    return at_most(name, f"{small:,}", f"{big:,}", small / big, 1 / 3)


def build_import_figures(results: Results) -> Iterable[Figure]:
    ours, work = results[OURS]["import"], results[OURS]["import, processor time"]
    yield at_most("import standfast; standfast.Runner", f"{ours:.2f} s", "0.3 s", ours / 0.3, 1)
    yield without_target("  ... in processor time", f"{work:.2f} s", "0.3 s", work / 0.3)
    for library, own in results.items():
        if library != OURS and "import" in own:
            yield without_target(
                f"  ... compared with {library}'s", f"{ours:.2f} s", f"{own['import']:.2f} s", own["import"] / ours
            )
