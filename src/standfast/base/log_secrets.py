"""Keeps keys out of the logs of the libraries that send them, which log the headers of both sides at level DEBUG."""

import logging
from collections.abc import Callable

_PARTS_OF_HTTPCORE = ("connection", "http11", "http2", "proxy", "socks")
_LIBRARY_LOGGERS = (
    *("openai", "openai._base_client", "openai._response", "openai._legacy_response", "openai.audio.transcriptions"),
    *("openai.resources.responses.responses", "websockets.client", "httpx", "httpx2"),
    *(f"{library}.{part}" for library in ("httpcore", "httpcore2") for part in _PARTS_OF_HTTPCORE),
)
MAX_PLACEHOLDER_LENGTH = 7
"""Keys of at most this length are placeholders, such as ``test``, and not hidden."""
_secrets: set[str] = set()


def hide_in_logs(secret: str) -> None:
    """From now on, the libraries log asterisks in place of this key."""
    if len(secret) <= MAX_PLACEHOLDER_LENGTH or secret in _secrets:
        return
    _secrets.add(secret)
    for name in _LIBRARY_LOGGERS:
        logging.getLogger(name).addFilter(_hide_in_record)


def hide_in_record(record: logging.LogRecord, hide: Callable[[str], str]) -> bool:
    """Replace the message and the traceback of a record by what ``hide`` makes of them. Used in logging filters."""
    if (message := record.getMessage()) != (hidden := hide(message)):
        record.msg, record.args = hidden, None
    if record.exc_info:
        record.exc_text = hide(logging.Formatter().formatException(record.exc_info))
    return True


def _hide_in_record(record: logging.LogRecord) -> bool:
    return hide_in_record(record, _hide_in_text)


def _hide_in_text(text: str) -> str:
    for secret in _secrets:
        text = text.replace(secret, "***")
    return text
