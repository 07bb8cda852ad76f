"""The logger ``standfast``, and filters that keep keys out of the logs of other libraries.

The logger has no handler by default and never receives contents of conversations. What it does receive may come from
others: names of tools, lines of servers, messages of errors. Their invisible characters are escaped, because logs are
read on terminals.
"""

import logging
import sys
from collections.abc import Callable
from functools import partial

from standfast.base.text import make_visible

_PARTS_OF_HTTPCORE = ("connection", "http11", "http2", "proxy", "socks")
_LIBRARY_LOGGERS = (
    *("openai", "openai._base_client", "openai._response", "openai._legacy_response", "openai.audio.transcriptions"),
    *("openai.resources.responses.responses", "websockets.client", "httpx", "httpx2"),
    *("mcp.client.sse", "mcp.client.streamable_http", "mcp.client.auth.oauth2"),
    *(f"{library}.{part}" for library in ("httpcore", "httpcore2") for part in _PARTS_OF_HTTPCORE),
)
MAX_PLACEHOLDER_LENGTH = 7
"""Keys of at most this length are placeholders, such as ``test``, and not hidden."""
UNPRINTABLE = "(an error that cannot be printed)"
_secrets: set[str] = set()


def get_logger(name: str = "standfast") -> logging.Logger:
    """Return the logger of that name, whose messages and tracebacks have no invisible characters."""
    logger = logging.getLogger(name)
    logger.addFilter(_escape_record)
    return logger


def _escape_record(record: logging.LogRecord) -> bool:
    return rewrite_record(record, partial(make_visible, multiline=True))


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


def hide_in_logs(secret: str) -> None:
    """From now on, the libraries log asterisks in place of this key."""
    if len(secret) <= MAX_PLACEHOLDER_LENGTH or secret in _secrets:
        return
    _secrets.add(secret)
    for name in _LIBRARY_LOGGERS:
        logging.getLogger(name).addFilter(_hide_in_record)


def rewrite_record(record: logging.LogRecord, rewrite: Callable[[str], str]) -> bool:
    """Replace the message and the traceback of a record by what ``rewrite`` makes of them. Used in logging filters.

    An exception that cannot be formatted, for example because its attributes raise, does not fail the caller that logs.
    """
    if (message := _format_safely(record.getMessage)) != (text := rewrite(message)) or message == UNPRINTABLE:
        record.msg, record.args = text, None
    if record.exc_info:
        exception = record.exc_info
        record.exc_text = rewrite(_format_safely(lambda: logging.Formatter().formatException(exception)))
    return True


def _format_safely(format: Callable[[], str]) -> str:
    try:
        return format()
    except Exception:  # noqa: BLE001 - classes of others decide what is raised
        return UNPRINTABLE


def _hide_in_record(record: logging.LogRecord) -> bool:
    return rewrite_record(record, hide_secrets)


def hide_secrets(text: str) -> str:
    """Return the text with asterisks in place of every key that is hidden in logs."""
    for secret in _secrets:
        text = text.replace(secret, "***")
    return text
