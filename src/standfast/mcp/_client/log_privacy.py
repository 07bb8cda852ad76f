"""Keeps the credentials in addresses of MCP servers out of the logs of the libraries that connect to them."""

import contextlib
import logging
import re
from urllib.parse import unquote, urlsplit

import httpx2

from standfast.base.log import hide_in_logs, rewrite_record

_LIBRARY_LOGGERS = ("httpx2", "mcp.client.sse", "mcp.client.streamable_http", "mcp.client.auth.oauth2")
_URL = re.compile(r"(https?://)(?:[^/\s?#'\"]*@)?([^/\s?#@'\"]+)([^\s?#'\"]*)(?:[?#][^\s'\"]*)?", re.IGNORECASE)
_hosts: set[str] = set()


def hide_credentials(url: str) -> None:
    """From now on, no library logs the user, the query or the fragment of an address at the host of ``url``.

    The password, the values of the query and the fragment are hidden wherever they occur: a server may repeat them.
    """
    parts = urlsplit(url)
    password = parts.netloc.rpartition("@")[0].partition(":")[2]
    values = [value for pair in parts.query.split("&") for value in pair.split("=", 1)[1:]]
    for secret in (password, parts.fragment, *values):
        hide_in_logs(secret)
        hide_in_logs(unquote(secret))
    _hosts.add(parts.netloc.rpartition("@")[2].lower())
    with contextlib.suppress(httpx2.InvalidURL):
        # As the library writes it: without the usual port, and without umlauts.
        _hosts.add(httpx2.URL(url).netloc.decode().lower())
    for name in _LIBRARY_LOGGERS:
        logging.getLogger(name).addFilter(_hide_in_record)


def _hide_in_record(record: logging.LogRecord) -> bool:
    return rewrite_record(record, _hide_in_text)


def _hide_in_text(text: str) -> str:
    return _URL.sub(lambda found: "".join(found.groups()) if found[2].lower() in _hosts else found[0], text)
