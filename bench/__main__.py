"""``make bench``: measure everything, or the groups named on the command line."""

import importlib
import json
import platform
import sys
import time
from pathlib import Path

from bench.rows import table

GROUPS = ("history", "workers", "runs", "runtime", "realtime")


def main() -> None:
    report: dict[str, object] = {"at": time.time(), "python": platform.python_version(), "machine": platform.platform()}
    for group in sys.argv[1:] or GROUPS:
        figures = importlib.import_module(f"bench.{group}").figures()
        print(f"\n{group}\n{table(figures)}", flush=True)
        report[group] = [figure.as_dict() for figure in figures]
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    target = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    target.write_text(json.dumps(report, indent=1))
    print(f"\nwritten to {target}")


if __name__ == "__main__":
    main()
