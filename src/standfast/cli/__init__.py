"""The command line interface. Requires the extra ``cli``."""

import os
import sys


def main() -> None:
    """Run ``standfast``."""
    prepare_standard_streams()
    try:
        run_commands()
    except KeyboardInterrupt:  # during imports; commands handle it themselves
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
    """Replace closed standard streams by the null device, and escape characters that the encoding lacks."""
    # In this order, so that each stream gets its usual descriptor: the next file opened would become standard output.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the process exits
        elif mode == "w":
            stream.reconfigure(errors="backslashreplace")
