"""One run: the groups one after the other, what they found on the screen and in a file."""

import json
import os
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.machine import cores, facts, warning
from bench.plots import draw
from bench.progress import moving, tell
from bench.figures import Figure, Series, table, verdict

Group = Callable[[], Iterable[Figure | Series]]


class Report:
    """What was found so far. A group that fails is told and does not keep the others from being measured."""

    def __init__(self, *, quick: bool) -> None:
        self.quick, self.begun = quick, time.time()
        self.load = os.getloadavg()
        self.groups: dict[str, dict[str, Any]] = {}
        self.figures: list[tuple[str, Figure]] = []
        self.series: list[Series] = []
        self.failed: list[str] = []

    def measure(self, groups: Mapping[str, Group]) -> None:
        for name, group in groups.items():
            tell(name)
            load, begun = os.getloadavg()[0], time.perf_counter()
            with moving():
                try:
                    found = list(group())
                except Exception:
                    traceback.print_exc()
                    self.failed.append(name)
                    continue
            self.keep(name, found, load=load, seconds=time.perf_counter() - begun)
            print(self.shown(name), flush=True)

    def keep(self, name: str, found: list[Figure | Series], *, load: float, seconds: float) -> None:
        figures = [one for one in found if isinstance(one, Figure)]
        series = [one for one in found if isinstance(one, Series)]
        self.figures += [(name, figure) for figure in figures]
        self.series += series
        self.groups[name] = {
            "load_before": load,
            "load_after": os.getloadavg()[0],
            "seconds": round(seconds, 1),
            "figures": [figure.as_dict() for figure in figures],
            "series": [one.as_dict() for one in series],
        }

    def shown(self, name: str) -> str:
        about = self.groups[name]
        figures = [figure for group, figure in self.figures if group == name]
        return f"\n{name} ({about['seconds']:.0f} s, load average {about['load_before']:.1f})\n{table(figures)}\n"

    def closing(self) -> str:
        """The lines at the end: every target that was missed or could not be compared, and how many were met."""
        verdicts = [(name, figure, verdict(figure)) for name, figure in self.figures if figure.target]
        lines = [
            f"{word}: {name}: {figure.name.strip()}: {figure.ours} against {figure.other or figure.target}"
            f" (target {figure.target})"
            for name, figure, word in verdicts
            if word in ("MISSED", "not compared")
        ]
        lines += [f"FAILED: {name}: the error stands above; nothing of it was measured" for name in self.failed]
        met = sum(word == "met" for _, _, word in verdicts)
        lines.append(f"{met} of {len(verdicts)} targets met{' (quick: sizes differ from the targets)' * self.quick}")
        return "\n".join([*lines, *filter(None, [warning(self.load[0], cores())])])

    def write(self, folder: Path) -> list[Path]:
        """The JSON and, of what can be drawn, PNG and SVG."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = time.strftime("%Y%m%d-%H%M%S", time.localtime(self.begun))
        machine, after = facts(), os.getloadavg()
        content = {
            "at": self.begun,
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
            f"before, {after[0]:.1f} after{'; a quick run' * self.quick}; " + ", ".join(peers(machine))
        )
        return [target, *draw(self.series, note, folder, stem)]


def peers(machine: dict[str, Any]) -> list[str]:
    return [f"{name} {version}" for name, version in machine["peers"].items()]
