"""OpenTelemetry spans of requests: the parent is the client's, and what a request starts is below it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.requests import Request

from standfast.server.endpoints import Endpoint
from standfast.tracing.registry import call_safely, get_listeners

if TYPE_CHECKING:
    from standfast.tracing.otel import OtelSpan


class RequestSpan:
    """The span of one request, if the program has set up OpenTelemetry."""

    def __init__(self, span: "OtelSpan | None") -> None:
        self.status = 500
        self.attributes: dict[str, str] = {}
        self._span = span

    def end(self) -> None:
        if self._span is not None:
            call_safely(self._span.end_request, self.status, self.attributes)


@contextmanager
def trace_request(request: Request, endpoint: Endpoint) -> Iterator[RequestSpan]:
    """Make a span the current one until the answer begins; runs that the request starts become its children."""
    bridge = get_listeners()[1]
    if bridge is None:
        yield RequestSpan(None)
        return
    attributes = {
        "http.request.method": request.method,
        "http.route": endpoint.path,
        "url.path": request.scope["path"],
        "url.scheme": request.scope["scheme"],
        "standfast.request_id": request.state.request_id,
    }
    name = f"{request.method} {endpoint.path}"
    otel = call_safely(bridge.start_request_span, name, request.headers, attributes)
    span = RequestSpan(otel)
    if otel is not None:
        call_safely(otel.attach)
    try:
        yield span
    finally:
        if otel is not None:
            call_safely(otel.detach)
        span.end()
