"""``make bench``: measure everything, or the groups named on the command line."""

import argparse
import importlib
import os
import sys
from pathlib import Path

from bench.machine import cores, warning
from bench.quick import VARIABLE
from bench.report import Group, Report

GROUPS = ("history", "runs", "runtime", "realtime", "workers")
RESULTS = Path(__file__).parent / "results"


def loaded(name: str) -> Group:
    """A group is a module with ``figures()``, which gives ``Figure`` lines and, for the pictures, ``Series``."""

    def figures() -> object:
        return importlib.import_module(f"bench.{name}").figures()

    return figures  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measure standfast side by side with its peers."
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"some of: {', '.join(GROUPS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="few rounds and small sizes: that it works, not how fast")
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"no group {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    if options.quick:
        os.environ[VARIABLE] = "1"  # before the groups are imported; the processes of the peers inherit it
    report = Report(quick=options.quick)
    if line := warning(report.load[0], cores()):
        print(line, file=sys.stderr, flush=True)
    report.measure({name: loaded(name) for name in options.groups or GROUPS})
    print(report.closing())
    for path in report.write(RESULTS):
        print(f"written: {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
