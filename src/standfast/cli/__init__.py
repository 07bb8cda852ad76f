"""The command line. Needs the extra ``cli``."""

import os
import sys


def main() -> None:
    """Run ``standfast``."""
    prepare_standard_streams()
    try:
        run_commands()
    except KeyboardInterrupt:  # while modules were imported; commands see to it themselves
        sys.exit(130)


def run_commands() -> None:
    try:
        from standfast.cli.app import main as run
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit("standfast: the command line needs the extra 'cli': pip install 'standfast[cli]'")
    run()


def prepare_standard_streams() -> None:
    """Standard streams that are closed lead nowhere, and what an encoding lacks is printed as an escape."""
    # In this order, so that each gets the number it should have: a file opened next would become standard output.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for as long as we run
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")
