"""Figures: how they are measured, compared with targets and shown."""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

Work = Callable[[], Awaitable[object]]
Round = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Figure:
    """One measured line. The target refers to ``ratio``; ``met`` is ``None`` without a target, or if the competitor
    could not be measured."""

    name: str
    ours: str
    other: str
    ratio: float | None
    target: str
    met: bool | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Series:
    """Measured seconds for a plot, by the number in ``at``: turns, or the index of a repetition."""

    plot: str
    name: str
    at: tuple[int, ...]
    seconds: tuple[float, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def at_most(name: str, ours: str, other: str, ratio: float, limit: float | None) -> Figure:
    if limit is None:
        return without_target(name, ours, other, ratio)
    return Figure(name, ours, other, round(ratio, 3), f"<= {limit:.3g}x", ratio <= limit)


def at_least(name: str, ours: str, other: str, ratio: float, limit: float | None) -> Figure:
    if limit is None:
        return without_target(name, ours, other, ratio)
    return Figure(name, ours, other, round(ratio, 3), f">= {limit:g}x", ratio >= limit)


def figure_with_limit(name: str, ours: float, maximum: float, unit: str = "ms") -> Figure:
    return Figure(name, f"{ours:.2f} {unit}", "", round(ours / maximum, 3), f"<= {maximum:g} {unit}", ours <= maximum)


def without_target(name: str, ours: str, other: str, ratio: float) -> Figure:
    """Return a figure without a target."""
    return Figure(name, ours, other, round(ratio, 3), "", None)


def not_compared(name: str, ours: str, target: str) -> Figure:
    """Return a figure whose competitor could not be measured: its target is neither met nor missed."""
    return Figure(name, ours, "unavailable", None, target, None)


def format_seconds(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def make_timed_round(work: Work, *, calls: int, each: int = 1) -> Round:
    """Return a round of ``calls`` calls, each of which counts as ``each`` operations."""

    async def measure_round() -> float:
        start = time.perf_counter()
        for _ in range(calls):
            await work()
        return (time.perf_counter() - start) / (calls * each)

    return measure_round


async def measure_in_turns(rounds_by_name: Mapping[str, Round], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round by name; they take turns, so that noise of the machine affects all alike.

    Every other round runs in reverse order, because the order matters too. The first round is a warm-up and is not
    counted.
    """
    seconds_by_name: dict[str, list[float]] = {name: [] for name in rounds_by_name}
    for number in range(rounds + 1):
        for name in list(rounds_by_name)[:: -1 if number % 2 else 1]:
            seconds = await rounds_by_name[name]()
            if number:
                seconds_by_name[name].append(seconds)
    return seconds_by_name


async def measure_medians(rounds_by_name: Mapping[str, Round], rounds: int) -> dict[str, float]:
    """Return the median of each name over rounds in which they take turns."""
    return {
        name: statistics.median(measure_round)
        for name, measure_round in (await measure_in_turns(rounds_by_name, rounds)).items()
    }


def get_verdict(figure: Figure) -> str:
    if figure.met is None:
        return "not compared" if figure.ratio is None and figure.target else ""
    return "met" if figure.met else "MISSED"


def format_cells(figure: Figure) -> tuple[str, ...]:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}x" if figure.ratio < 100 else f"{figure.ratio:.0f}x"
    return figure.name, figure.ours, figure.other, ratio, figure.target, get_verdict(figure)


def format_table(figures: list[Figure]) -> str:
    lines = [("figure", "ours", "other", "ratio", "target", ""), *map(format_cells, figures)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
