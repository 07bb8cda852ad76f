"""The log of a server process: one line per request, as text or as JSON, never with bodies or credentials."""

import logging
import sys
from typing import Any

import msgspec

from standfast.base.text import make_visible

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object with its extra fields. Foreign characters are escaped as JSON allows."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, Any] = {
            "at": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        entry |= {name: value for name, value in vars(record).items() if name not in _STANDARD and value is not None}
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return make_visible(msgspec.json.encode(entry, enc_hook=str).decode())


class LineFormatter(logging.Formatter):
    """Formats a record as a line in which foreign characters are visible."""

    def format(self, record: logging.LogRecord) -> str:
        return make_visible(super().format(record), multiline=bool(record.exc_info))


class RefusedSocketFilter(logging.Filter):
    """Drops the error that uvicorn logs for a WebSocket that was refused with a response."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "ASGI callable returned without completing handshake."


def configure_logging(*, as_json: bool) -> None:
    """Write the log of standfast and of the HTTP server to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = JsonFormatter() if as_json else LineFormatter("%(asctime)s %(levelname)s %(message)s")
    handler.setFormatter(formatter)
    for name in ("standfast", "uvicorn.error"):
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.filters[:] = [RefusedSocketFilter()] if name == "uvicorn.error" else []
        log.setLevel(logging.INFO if name == "standfast" else logging.WARNING)
        log.propagate = False
