"""How figures are taken and shown."""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

Work = Callable[[], Awaitable[object]]
Round = Callable[[], Awaitable[float]]


@dataclass(frozen=True)
class Figure:
    """One measured line. ``ratio`` is what the target speaks about; ``met`` is ``None`` where nothing is to be met,
    or where the peer could not be measured."""

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
    """Measured values for a plot: seconds, by what stands in ``at`` (turns), or repeated (``at`` counts the takes)."""

    plot: str
    name: str
    at: tuple[int, ...]
    seconds: tuple[float, ...]

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def at_most(name: str, ours: str, other: str, ratio: float, limit: float | None) -> Figure:
    if limit is None:
        return compared(name, ours, other, ratio)
    return Figure(name, ours, other, round(ratio, 3), f"<= {limit:.3g}x", ratio <= limit)


def at_least(name: str, ours: str, other: str, ratio: float, limit: float | None) -> Figure:
    if limit is None:
        return compared(name, ours, other, ratio)
    return Figure(name, ours, other, round(ratio, 3), f">= {limit:g}x", ratio >= limit)


def compared(name: str, ours: str, other: str, ratio: float) -> Figure:
    """A line without a target."""
    return Figure(name, ours, other, round(ratio, 3), "", None)


def without_peer(name: str, ours: str, target: str) -> Figure:
    """A line whose peer could not be measured: nothing is met and nothing missed."""
    return Figure(name, ours, "no peer", None, target, None)


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"


def percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def clocked(work: Work, *, calls: int, each: int = 1) -> Round:
    """A round of so many calls, each of them worth ``each``."""

    async def taken() -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            await work()
        return (time.perf_counter() - begin) / (calls * each)

    return taken


async def in_turns(rivals: Mapping[str, Round], rounds: int) -> dict[str, list[float]]:
    """What each rival took in each round; they take turns, so that the noise of the machine falls on all alike.

    Every other round goes backwards: who follows whom makes a difference too. The first round warms everybody up and
    is not counted.
    """
    found: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds + 1):
        for name in list(rivals)[:: -1 if number % 2 else 1]:
            seconds = await rivals[name]()
            if number:
                found[name].append(seconds)
    return found


async def side_by_side(rivals: Mapping[str, Round], rounds: int) -> dict[str, float]:
    """The median of each rival over rounds in which they take turns."""
    return {name: statistics.median(taken) for name, taken in (await in_turns(rivals, rounds)).items()}


def verdict(figure: Figure) -> str:
    if figure.met is None:
        return "not compared" if figure.ratio is None and figure.target else ""
    return "met" if figure.met else "MISSED"


def cells(figure: Figure) -> tuple[str, ...]:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.3g}x" if figure.ratio < 100 else f"{figure.ratio:.0f}x"
    return figure.name, figure.ours, figure.other, ratio, figure.target, verdict(figure)


def table(figures: list[Figure]) -> str:
    lines = [("figure", "ours", "other", "ratio", "target", ""), *map(cells, figures)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
