"""The pictures: the cost of a turn against the length of the run, and how long a worker takes to start."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import Series, percentile

COLOURS = {"standfast": "#0b6e4f", "openai-agents": "#c44536", "pydantic-ai": "#8e6bbf", "langgraph": "#2f6690"}
OTHER, STARTS = "#7f8c8d", "start"


def draw(series: Sequence[Series], note: str, folder: Path, stem: str) -> list[Path]:
    """The files written, PNG and SVG of each picture; none where matplotlib is missing or nothing is to be drawn."""
    if not series:
        return []
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
        found["starts"] = dots(starts, note, pyplot)
    return found


def lengths(series: Sequence[Series], note: str, pyplot: Any) -> Any:
    """A panel per way of storing, both axes logarithmic: a level line is a cost that does not grow."""
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
        axis.yaxis.set_major_formatter("{x:g}")
        axis.margins(x=0.12)
        axis.grid(visible=True, alpha=0.3)
    axes[0][0].set_ylabel("processor time per turn, ms")
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=len(handles), bbox_to_anchor=(0.5, 0.94))
    return captioned(figure, "The cost of a turn against the length of the run", note)


def dots(series: Sequence[Series], note: str, pyplot: Any) -> Any:
    """Every start as a faint dot, the median as a full one with its value. No bars: they would begin nowhere."""
    ordered = sorted(series, key=lambda one: percentile(one.seconds, 0.5), reverse=True)
    figure, axis = pyplot.subplots(figsize=(9, 3.9))
    for row, one in enumerate(ordered):
        times = [second * 1e3 for second in one.seconds]
        middle, colour = percentile(times, 0.5), COLOURS["standfast"] if "worker" in one.name else OTHER
        axis.plot(times, [row] * len(times), "o", color=colour, alpha=0.2, markersize=5, markeredgewidth=0)
        axis.plot(middle, row, "o", color=colour, markersize=11)
        value = f"{middle:,.0f} ms" if middle >= 100 else f"{middle:.1f} ms"
        axis.annotate(value, (middle, row), (0, 10), textcoords="offset points", ha="center")
    axis.set_yticks(range(len(ordered)), [f"{one.name} ({len(one.at)} starts)" for one in ordered])
    axis.set(
        xscale="log", xlabel="ms until it can be used; the full dot is the median", ylim=(-0.5, len(ordered) - 0.3)
    )
    axis.xaxis.set_major_formatter("{x:g}")
    axis.margins(x=0.12)
    axis.grid(visible=True, axis="x", alpha=0.3)
    return captioned(figure, "Starting a Python to work with", note)


def captioned(figure: Any, title: str, note: str) -> Any:
    figure.suptitle(title)
    figure.text(0.01, 0.01, textwrap.fill(note, 130), fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.07, 1, 0.93 if figure.legends else 1))
    return figure
