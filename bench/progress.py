"""Progress messages: one updated line on a terminal if rich is installed, otherwise one line for each message."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_line: Any = None


@contextmanager
def progress_line() -> Iterator[None]:
    """Let ``show_progress`` update one line inside the block; other output appears above it."""
    global _line
    try:
        from rich.console import Console
    except ImportError:
        yield
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status("measuring") as status:
        _line = status
        try:
            yield
        finally:
            _line = None


def show_progress(text: str) -> None:
    """Show what is measured next."""
    stamped = f"{time.strftime('%H:%M:%S')} {text}"
    if _line is None:
        print(f"  {stamped}", file=sys.stderr, flush=True)
    else:
        _line.update(stamped)
