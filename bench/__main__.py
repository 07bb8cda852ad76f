"""``make bench``: measure everything, or the groups named on the command line."""

import argparse
import importlib
import os
import sys
from pathlib import Path

from bench.machine import count_cores, get_load_warning
from bench.quick import VARIABLE
from bench.report import Group, Report

GROUPS = ("history", "runs", "runtime", "live", "server", "realtime", "workers", "workspaces", "console", "fleet")
RESULTS = Path(__file__).parent / "results"


def load_group(name: str) -> Group:
    """Return the ``figures()`` of a group module, which yields ``Figure`` and, for plots, ``Series`` objects."""

    def figures() -> object:
        return importlib.import_module(f"bench.{name}").figures()

    return figures  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure standfast side by side with its competitors."
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"some of: {', '.join(GROUPS)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="few rounds and small sizes: check that it works, not how fast"
    )
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"unknown group {', '.join(sorted(unknown))}; expected some of {', '.join(GROUPS)}")
    if options.quick:
        os.environ[VARIABLE] = "1"  # before the groups are imported; the processes of competitors inherit it
    report = Report(quick=options.quick)
    if line := get_load_warning(report.load[0], count_cores()):
        print(line, file=sys.stderr, flush=True)
    report.measure({name: load_group(name) for name in options.groups or GROUPS})
    print(report.format_summary())
    for path in report.write(RESULTS):
        print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
