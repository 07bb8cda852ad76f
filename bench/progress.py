"""What is being measured right now: a line that moves on a terminal where rich is installed, else a line each."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_line: Any = None


@contextmanager
def moving() -> Iterator[None]:
    """Let ``tell`` move one line while the block lasts; what is printed meanwhile appears above it."""
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


def tell(text: str) -> None:
    """Say what is measured next."""
    stamped = f"{time.strftime('%H:%M:%S')} {text}"
    if _line is None:
        print(f"  {stamped}", file=sys.stderr, flush=True)
    else:
        _line.update(stamped)
