"""One run of the benchmark: measures the groups one after the other and writes their results."""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.figures import Figure, Series, format_table, get_verdict
from bench.machine import collect_facts, count_cores, get_load_warning
from bench.plots import draw_plots
from bench.progress import progress_line, show_progress

Group = Callable[[], Iterable[Figure | Series]]


class Report:
    """The results so far. A group that fails is reported; the others are still measured."""

    def __init__(self, *, quick: bool) -> None:
        self.quick, self.started_at = quick, time.time()
        self.load = os.getloadavg()
        self.groups: dict[str, dict[str, Any]] = {}
        self.figures: list[tuple[str, Figure]] = []
        self.series: list[Series] = []
        self.failed: list[str] = []

    def measure(self, groups: Mapping[str, Group]) -> None:
        for name, group in groups.items():
            show_progress(name)
            load, started_at = os.getloadavg()[0], time.perf_counter()
            with progress_line():
                try:
                    results = list(group())
                except Exception:
                    traceback.print_exc()
                    self.failed.append(name)
                    continue
            self.add_group(name, results, load=load, seconds=time.perf_counter() - started_at)
            print(self.format_group(name), flush=True)

    def add_group(self, name: str, results: list[Figure | Series], *, load: float, seconds: float) -> None:
        figures = [result for result in results if isinstance(result, Figure)]
        series = [result for result in results if isinstance(result, Series)]
        self.figures += [(name, figure) for figure in figures]
        self.series += series
        self.groups[name] = {
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "seconds": round(seconds, 1),
            "figures": [figure.as_dict() for figure in figures],
            "series": [result.as_dict() for result in series],
        }

    def format_group(self, name: str) -> str:
        details = self.groups[name]
        figures = [figure for group, figure in self.figures if group == name]
        heading = f"{name} ({details['seconds']:.0f} s, load average {details['load_before']:.1f})"
        return f"\n{heading}\n{format_table(figures)}\n"

    def format_summary(self) -> str:
        """Return the summary: each target that was missed or not compared, and the number of targets that were met."""
        verdicts = [(name, figure, get_verdict(figure)) for name, figure in self.figures if figure.target]
        lines = [
            f"{verdict}: {name}: {figure.name.strip()}: {figure.ours} against {figure.other or figure.target}"
            f" (target {figure.target})"
            for name, figure, verdict in verdicts
            if verdict in ("MISSED", "not compared")
        ]
        lines += [f"FAILED: {name}: see the error above; the group was not measured" for name in self.failed]
        met = sum(verdict == "met" for _, _, verdict in verdicts)
        lines.append(f"{met} of {len(verdicts)} targets met{' (quick: sizes differ from the targets)' * self.quick}")
        return "\n".join([*lines, *filter(None, [get_load_warning(self.load[0], count_cores())])])

    def write(self, folder: Path) -> list[Path]:
        """Write the JSON file and the plots, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.started_at))
        machine, after = collect_facts(), os.getloadavg()
        content = {
            "at": self.started_at,
            "quick": self.quick,
            "machine": machine,
            "load_before": self.load,
            "load_after": after,
            "failed": self.failed,
            "groups": self.groups,
        }
        target = folder / f"{stem}.json"
        target.write_text(json.dumps(content, indent=1))
        note = (
            f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}; load average {self.load[0]:.1f} "
            f"before, {after[0]:.1f} after{'; a quick run' * self.quick}; " + ", ".join(list_competitors(machine))
        )
        return [target, *draw_plots(self.series, note, folder, stem)]


def list_competitors(machine: dict[str, Any]) -> list[str]:
    return [f"{name} {version}" for name, version in machine["competitors"].items()]
