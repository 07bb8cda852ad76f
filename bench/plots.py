"""The pictures: the cost of a turn against the length of the run, and how long a worker takes to start."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.rows import Series, percentile

COLOURS = {"holdfast": "#0b6e4f", "openai-agents": "#c44536", "pydantic-ai": "#8e6bbf", "langgraph": "#2f6690"}
OTHER, STARTS = "#7f8c8d", "start"


def draw(series: Sequence[Series], note: str, folder: Path, stem: str) -> list[Path]:
    """The files written, PNG and SVG of each picture; none where matplotlib is missing or nothing is to be drawn."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for name, drawn in pictures(series, note, pyplot).items():
        for suffix in ("png", "svg"):
            path = folder / f"{stem}-{name}.{suffix}"
            drawn.savefig(path, dpi=130)
            written.append(path)
        pyplot.close(drawn)
    return written


def pictures(series: Sequence[Series], note: str, pyplot: Any) -> dict[str, Any]:
    turns = [one for one in series if one.plot != STARTS]
    starts = [one for one in series if one.plot == STARTS]
    found = {}
    if turns:
        found["turns"] = lengths(turns, note, pyplot)
    if starts:
        found["starts"] = bars(starts, note, pyplot)
    return found


def lengths(series: Sequence[Series], note: str, pyplot: Any) -> Any:
    """A panel per way of storing, both axes logarithmic: a straight level line is a cost that does not grow."""
    panels = list(dict.fromkeys(one.plot for one in series))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.6), sharey=True, squeeze=False)
    for panel, axis in zip(panels, axes[0], strict=True):
        for one in (one for one in series if one.plot == panel):
            milliseconds = [second * 1e3 for second in one.seconds]
            colour = COLOURS.get(one.name, OTHER)
            axis.plot(one.at, milliseconds, marker="o", color=colour, label=one.name)
            axis.annotate(
                f"{milliseconds[-1]:.2g}", (one.at[-1], milliseconds[-1]), (6, -3), textcoords="offset points"
            )
        ticks = sorted({turn for one in series for turn in one.at})
        axis.set(title=panel, xlabel="turns of the run", xscale="log", yscale="log")
        axis.set_xticks(ticks, [str(turn) for turn in ticks])
        axis.minorticks_off()
        axis.margins(x=0.12)
        axis.grid(visible=True, alpha=0.3)
    axes[0][0].set_ylabel("processor time per turn, ms")
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    axes[0][0].legend(handles.values(), handles.keys())
    return captioned(figure, "The cost of a turn against the length of the run", note)


def bars(series: Sequence[Series], note: str, pyplot: Any) -> Any:
    """The median of each as a bar, the middle 80 % of its starts as a line over it."""
    ordered = sorted(series, key=lambda one: statistics.median(one.seconds), reverse=True)
    figure, axis = pyplot.subplots(figsize=(8, 3.6))
    for row, one in enumerate(ordered):
        times = [second * 1e3 for second in one.seconds]
        middle, low, high = statistics.median(times), percentile(times, 0.1), percentile(times, 0.9)
        axis.barh(row, middle, color=COLOURS["holdfast"] if "worker" in one.name else OTHER)
        axis.plot([low, high], [row, row], color="black", linewidth=1.5)
        axis.annotate(f"{middle:.3g} ms", (max(middle, high), row), (6, -4), textcoords="offset points")
    axis.set_yticks(range(len(ordered)), [f"{one.name} ({len(one.at)})" for one in ordered])
    axis.set(
        xscale="log", xlabel="ms until it can be used (median; line: 10th to 90th percentile; in brackets: starts)"
    )
    axis.margins(x=0.15)
    axis.grid(visible=True, axis="x", alpha=0.3)
    return captioned(figure, "Starting a Python to work with", note)


def captioned(figure: Any, title: str, note: str) -> Any:
    figure.suptitle(title)
    figure.text(0.01, 0.01, note, fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    return figure
