"""From endpoints to routes: every request is authenticated, limited, authorised, decoded, answered and logged here.

The OpenTelemetry span of a request has the client's as its parent, and what the request starts is below it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.datastructures import URLPath
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, NoMatchFound, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketState

from standfast.base.errors import OutsideScope
from standfast.base.ids import new_id
from standfast.base.log import get_logger
from standfast.server.auth.principals import Unauthenticated
from standfast.server.endpoints import WEBSOCKET, Endpoint, Forbidden
from standfast.server.exchange import Exchange, Hidden
from standfast.server.problems import Draining, RateLimited, make_problem, make_response
from standfast.server.service import Service
from standfast.tracing.registry import call_safely, get_listeners

if TYPE_CHECKING:
    from standfast.tracing.otel import OtelSpan

_log = get_logger(__name__)
_DENIALS = (Unauthenticated, Forbidden, Hidden, OutsideScope)


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


def make_routes(service: Service, endpoints: Sequence[Endpoint]) -> list[BaseRoute]:
    """Return the routes of all endpoints; those with the same path are one route."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    routes: list[BaseRoute] = []
    for endpoint in endpoints:
        if endpoint.method == WEBSOCKET:
            routes.append(WebSocketRoute(endpoint.path, _make_socket_handler(service, endpoint)))
        else:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    http = [Route(path, _make_handler(service, methods), methods=list(methods)) for path, methods in by_path.items()]
    fixed = {route.path: route for route in http if "{" not in route.path}
    return [FixedRoutes(fixed), *(route for route in http if route.path not in fixed), *routes]


class FixedRoutes(BaseRoute):
    """The routes without parameters, found by their paths instead of one after the other."""

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self.by_path = routes

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        route = self._find(scope)
        return (Match.NONE, {}) if route is None else route.matches(scope)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._find(scope)
        assert route is not None  # noqa: S101 - it matched
        await route.handle(scope, receive, send)

    def _find(self, scope: Scope) -> Route | None:
        path, mount = scope["path"], scope.get("root_path", "")
        return self.by_path.get(path.removeprefix(mount)) if scope["type"] == "http" else None

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        raise NoMatchFound(name, path_params)


def _make_socket_handler(service: Service, endpoint: Endpoint) -> Any:
    async def handle(socket: WebSocket) -> None:
        socket.state.request_id = new_id("request")
        exchange = Exchange(service, endpoint, socket)
        try:
            await admit(exchange)
            await endpoint.handle(exchange)
        except Exception as error:  # noqa: BLE001 - every error becomes a problem document or a close code
            response = await refuse(exchange, error)
            if socket.application_state == WebSocketState.CONNECTING:
                await socket.send_denial_response(response)
            elif socket.application_state == WebSocketState.CONNECTED:
                await socket.close(1011)

    return handle


def _make_handler(service: Service, methods: dict[str, Endpoint]) -> Any:
    async def handle(request: Request) -> Response:
        endpoint = methods["GET" if request.method == "HEAD" else request.method]
        request.state.request_id = new_id("request")
        request.state.endpoint = endpoint
        exchange = Exchange(service, endpoint, request)
        began = time.perf_counter()
        with trace_request(request, endpoint) as span:
            try:
                response = await answer(exchange)
            except Exception as error:  # noqa: BLE001 - every error becomes a problem document
                response = await refuse(exchange, error)
            span.status = response.status_code
            span.attributes.update({f"standfast.{name}": value for name, value in exchange.path.items()})
        response.headers["x-request-id"] = request.state.request_id
        seconds = time.perf_counter() - began
        service.metrics.observe(endpoint.name, response.status_code, seconds)
        _log.info(
            "%s %s %d %.1f ms",
            request.method,
            request.scope["path"],
            response.status_code,
            seconds * 1000,
            extra={
                "request_id": request.state.request_id,
                "endpoint": endpoint.name,
                "status": response.status_code,
                "seconds": round(seconds, 6),
                "subject": getattr(request.state, "subject", None),
                "run_id": exchange.path.get("run_id"),
            },
        )
        return response

    return handle


async def admit(exchange: Exchange) -> None:
    """Authenticate, limit, authorise and decode a request, or raise the error for the client."""
    service, endpoint = exchange.service, exchange.endpoint
    try:
        if endpoint.rule is not None:
            await exchange.authenticate()
    finally:  # failed attempts count against the limit, too
        limit_rate(exchange)
    if endpoint.rule is not None:
        exchange.request.state.subject = exchange.principal.subject
        if service.draining.is_set() and endpoint.method != "GET":
            raise Draining("the server is stopping: send the request to another one, or again in a moment")
    await exchange.authorize()
    await exchange.decode()


async def answer(exchange: Exchange) -> Response:
    """Return the response to a request, or raise the error for the client."""
    endpoint = exchange.endpoint
    await admit(exchange)
    result = await endpoint.handle(exchange)
    if isinstance(result, Response):
        result.headers.update(exchange.headers)
        return result
    if endpoint.result is None:
        return Response(status_code=204, headers=exchange.headers)
    return Response(
        msgspec.json.encode(result), endpoint.status, headers=exchange.headers, media_type=endpoint.media_type
    )


def limit_rate(exchange: Exchange) -> None:
    """Count the request for its principal or, if it has none, for its address.

    Requests without a rule are counted by themselves: behind a balancer, all have its address, and those that are
    refused must not keep it from finding out whether the server is ready.
    """
    client = exchange.request.client
    name = f"address {client.host if client else 'unknown'}"
    if exchange.endpoint.rule is None:
        name = f"{exchange.endpoint.name} {name}"
    if exchange._principal is not None:
        name = f"principal {exchange._principal.subject}"
    wait = exchange.service.rate_limiter.take(name)
    if wait:
        raise RateLimited(wait)


async def refuse(exchange: Exchange, error: Exception) -> Response:
    """Return the problem document of an error; a denied request is recorded in the audit log."""
    if isinstance(error, _DENIALS):
        await exchange.service.record_denial(error, exchange.request, exchange._principal)
    is_conditional = exchange.endpoint.is_conditional and "if-match" in exchange.request.headers
    problem = make_problem(error, request_id=exchange.request.state.request_id, is_conditional=is_conditional)
    return make_response(problem, error)
