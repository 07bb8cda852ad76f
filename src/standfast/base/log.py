"""standfast's own log. It goes nowhere unless a program sends it somewhere, and has nobody's words in it."""

import logging
import sys

log = logging.getLogger("standfast")


def enable_verbose_stdout_logging() -> None:
    """Show everything that standfast logs on standard output. Calling it again changes nothing."""
    log.setLevel(logging.DEBUG)
    if not any(isinstance(handler, _StdoutHandler) for handler in log.handlers):
        log.addHandler(_StdoutHandler())


class _StdoutHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to what standard output is at the moment, which a program may replace."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)
