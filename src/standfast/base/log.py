"""The logger ``standfast``. It has no handler by default and never receives contents of conversations."""

import logging
import sys

log = logging.getLogger("standfast")


def enable_verbose_stdout_logging() -> None:
    """Write everything that standfast logs to standard output. Further calls have no effect."""
    log.setLevel(logging.DEBUG)
    if not any(isinstance(handler, _StdoutHandler) for handler in log.handlers):
        log.addHandler(_StdoutHandler())


class _StdoutHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """A handler that looks up ``sys.stdout`` for each record, because programs may replace it."""

    def __init__(self) -> None:
        super().__init__(sys.stdout)
        self.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stdout
        super().emit(record)
