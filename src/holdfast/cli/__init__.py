"""The command line. Needs the extra ``cli``."""

import sys


def main() -> None:
    """Run ``holdfast``."""
    try:
        from holdfast.cli.app import main as run
    except ModuleNotFoundError as missing:
        if (missing.name or "").split(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.exit("holdfast: the command line needs the extra 'cli': pip install 'holdfast[cli]'")
    run()
