"""The logger ``standfast``. It has no handler by default and never receives contents of conversations.

What it does receive may come from others: names of tools, lines of servers, messages of errors. Their invisible
characters are escaped, because logs are read on terminals.
"""

import logging
import sys

from standfast.base.text import make_visible


def get_logger(name: str = "standfast") -> logging.Logger:
    """Return the logger of that name, whose messages and tracebacks have no invisible characters."""
    logger = logging.getLogger(name)
    logger.addFilter(_escape_record)
    return logger


def _escape_record(record: logging.LogRecord) -> bool:
    if (message := record.getMessage()) != (visible := make_visible(message, multiline=True)):
        record.msg, record.args = visible, None
    if record.exc_info:
        text = logging.Formatter().formatException(record.exc_info)
        record.exc_text = make_visible(text, multiline=True)
    return True


log = get_logger()


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
