"""The plots: the cost of a turn by the length of the run, and the start time of a worker."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.figures import Series, percentile

COLOURS = {"standfast": "#0b6e4f", "openai-agents": "#c44536", "pydantic-ai": "#8e6bbf", "langgraph": "#2f6690"}
OTHER, STARTS = "#7f8c8d", "start"


def draw_plots(series: Sequence[Series], note: str, folder: Path, stem: str) -> list[Path]:
    """Write each plot as PNG and SVG and return the paths; none without matplotlib or without data."""
    if not series:
        return []
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for name, plot in build_plots(series, note, pyplot).items():
        for suffix in ("png", "svg"):
            path = folder / f"{stem}-{name}.{suffix}"
            plot.savefig(path, dpi=130)
            written.append(path)
        pyplot.close(plot)
    return written


def build_plots(series: Sequence[Series], note: str, pyplot: Any) -> dict[str, Any]:
    turns = [each for each in series if each.plot != STARTS]
    starts = [each for each in series if each.plot == STARTS]
    plots = {}
    if turns:
        plots["turns"] = plot_turns(turns, note, pyplot)
    if starts:
        plots["starts"] = plot_starts(starts, note, pyplot)
    return plots


def plot_turns(series: Sequence[Series], note: str, pyplot: Any) -> Any:
    """Plot one panel for each kind of store, both axes logarithmic: a level line is a constant cost."""
    panels = list(dict.fromkeys(each.plot for each in series))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.6), sharey=True, squeeze=False)
    for panel, axis in zip(panels, axes[0], strict=True):
        for each in (each for each in series if each.plot == panel):
            milliseconds = [second * 1e3 for second in each.seconds]
            colour = COLOURS.get(each.name, OTHER)
            axis.plot(each.at, milliseconds, marker="o", color=colour, label=each.name)
            axis.annotate(
                f"{milliseconds[-1]:.2g}", (each.at[-1], milliseconds[-1]), (6, -3), textcoords="offset points"
            )
        ticks = sorted({turn for each in series for turn in each.at})
        axis.set(title=panel, xlabel="turns of the run", xscale="log", yscale="log")
        axis.set_xticks(ticks, [str(turn) for turn in ticks])
        axis.minorticks_off()
        axis.yaxis.set_major_formatter("{x:g}")
        axis.margins(x=0.12)
        axis.grid(visible=True, alpha=0.3)
    axes[0][0].set_ylabel("processor time per turn, ms")
    handles = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="upper center", ncols=len(handles), bbox_to_anchor=(0.5, 0.94))
    return add_caption(figure, "The cost of a turn against the length of the run", note)


def plot_starts(series: Sequence[Series], note: str, pyplot: Any) -> Any:
    """Plot every start as a faint dot and the median as a full one; bars would need a zero on the logarithmic axis."""
    ordered = sorted(series, key=lambda each: percentile(each.seconds, 0.5), reverse=True)
    figure, axis = pyplot.subplots(figsize=(9, 3.9))
    for row, each in enumerate(ordered):
        times = [second * 1e3 for second in each.seconds]
        median, colour = percentile(times, 0.5), COLOURS["standfast"] if "worker" in each.name else OTHER
        axis.plot(times, [row] * len(times), "o", color=colour, alpha=0.2, markersize=5, markeredgewidth=0)
        axis.plot(median, row, "o", color=colour, markersize=11)
        value = f"{median:,.0f} ms" if median >= 100 else f"{median:.1f} ms"
        axis.annotate(value, (median, row), (0, 10), textcoords="offset points", ha="center")
    axis.set_yticks(range(len(ordered)), [f"{each.name} ({len(each.at)} starts)" for each in ordered])
    axis.set(xscale="log", xlabel="ms until ready; the full dot is the median", ylim=(-0.5, len(ordered) - 0.3))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.margins(x=0.12)
    axis.grid(visible=True, axis="x", alpha=0.3)
    return add_caption(figure, "Start of a Python process", note)


def add_caption(figure: Any, title: str, note: str) -> Any:
    figure.suptitle(title)
    figure.text(0.01, 0.01, textwrap.fill(note, 130), fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.07, 1, 0.93 if figure.legends else 1))
    return figure
