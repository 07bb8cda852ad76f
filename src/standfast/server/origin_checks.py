"""Checks that come before everything else: the host and the origin of a request, and the headers of every answer."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from standfast.server.problems import RequestError, WrongHost, WrongOrigin, make_problem, make_response
from standfast.server.service import Service

SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
}
_RAW_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

SINGLE_HEADERS = ("host", "origin", "authorization")


class OriginChecks:
    """Refuses requests for other hosts (DNS rebinding) and from pages of other sites; adds security headers.

    Path parameters stay percent-encoded up to the endpoint, so that an id may contain a slash.
    """

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str], service: Service) -> None:
        self.app, self.allowed_hosts, self.service = app, {host.lower() for host in allowed_hosts}, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        try:
            self.check(Headers(scope=scope))
        except RequestError as problem:
            await self.service.record_denial(problem, HTTPConnection(scope))
            await make_response(make_problem(problem), problem)(scope, receive, send)
            return
        if raw := scope.get("raw_path"):
            scope = {**scope, "path": raw.decode("ascii", "replace")}
        await self.app(scope, receive, _add_headers(send))

    def check(self, headers: Headers) -> None:
        for name in SINGLE_HEADERS:
            if len(headers.getlist(name)) > 1:  # a proxy may have checked the other one
                raise RequestError(f"send the header {name} once")
        host = headers.get("host", "")
        if not self.is_allowed(host):
            raise WrongHost(f"this server does not answer for {host!r}: add it to the allowed hosts")
        origin = headers.get("origin")
        if origin is not None and get_site(origin) != host.lower():
            raise WrongOrigin(f"requests from pages of {origin!r} are refused")

    def is_allowed(self, host: str) -> bool:
        name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host.lower()
        return "*" in self.allowed_hosts or name in self.allowed_hosts or host.lower() in self.allowed_hosts


def get_site(origin: str) -> str | None:
    """Return the host and port of an origin; ``None`` if it has none."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _add_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            names = {name for name, _ in message["headers"]}
            message["headers"].extend(header for header in _RAW_HEADERS if header[0] not in names)
        await send(message)

    return send_with_headers
