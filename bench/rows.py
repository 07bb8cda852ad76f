"""How figures are taken and shown."""

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Figure:
    """One measured line. ``ratio`` is what the target speaks about; ``None`` where there is no target."""

    name: str
    ours: str
    other: str
    ratio: float
    target: str
    met: bool | None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def at_most(name: str, ours: str, other: str, ratio: float, limit: float) -> Figure:
    return Figure(name, ours, other, round(ratio, 2), f"<= {limit:.3g}x", ratio <= limit)


def at_least(name: str, ours: str, other: str, ratio: float, limit: float) -> Figure:
    return Figure(name, ours, other, round(ratio, 2), f">= {limit}x", ratio >= limit)


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 0.01 else f"{seconds * 1e3:.1f} ms"


async def side_by_side(rivals: Mapping[str, Work], *, rounds: int, calls: int) -> dict[str, float]:
    """Seconds per call of each rival: the median over rounds in which they take turns.

    Taking turns makes the noise of the machine fall on all of them alike.
    """
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for work in rivals.values():
        await work()
    for _ in range(rounds):
        for name, work in rivals.items():
            start = time.perf_counter()
            for _ in range(calls):
                await work()
            times[name].append((time.perf_counter() - start) / calls)
    return {name: statistics.median(taken) for name, taken in times.items()}


def table(figures: list[Figure]) -> str:
    head = ("figure", "ours", "other", "ratio", "target", "")
    marks = {True: "met", False: "MISSED", None: ""}
    lines = [
        (figure.name, figure.ours, figure.other, f"{figure.ratio:g}x", figure.target, marks[figure.met])
        for figure in figures
    ]
    widths = [max(len(line[column]) for line in (head, *lines)) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *lines)
    )
