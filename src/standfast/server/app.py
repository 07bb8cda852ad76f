"""The ASGI application: all endpoints, behind checks of hosts and origins."""

import functools
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standfast.base.errors import InvalidInput, NotFound
from standfast.runtime.runtime import Runtime
from standfast.server import metrics
from standfast.server.auth.principals import Authenticator
from standfast.server.console_pages import ConsolePages
from standfast.server.endpoints import Endpoint
from standfast.server.openapi import ApiPage, build_openapi
from standfast.server.origin_checks import OriginChecks
from standfast.server.problems import RequestError, make_problem, make_response
from standfast.server.resources import (
    agents,
    approvals,
    budgets,
    cells,
    compaction,
    fleet,
    health,
    keys,
    overview,
    runs,
    schedules,
    session_views,
    sessions,
    webhooks,
    workers,
    workspaces,
)
from standfast.server.resources import (
    calls as call_endpoints,
)
from standfast.server.routing import make_routes
from standfast.server.service import Limits, Service

if TYPE_CHECKING:
    from standfast.server.calls.call import CallSource
    from standfast.workers.pool import SessionPool
    from standfast.workers.python_sessions import PythonSessions

ENDPOINTS: tuple[Endpoint, ...] = (
    *agents.endpoints,
    *fleet.endpoints,
    *overview.endpoints,
    *sessions.endpoints,
    *session_views.endpoints,
    *compaction.endpoints,
    *runs.endpoints,
    *approvals.endpoints,
    *workspaces.endpoints,
    *cells.endpoints,
    *workers.endpoints,
    *call_endpoints.endpoints,
    *health.endpoints,
    *keys.endpoints,
    *schedules.endpoints,
    *budgets.endpoints,
    *webhooks.endpoints,
    *metrics.endpoints,
)


def create_app(
    runtime: Runtime,
    *,
    auth: Authenticator | Sequence[Authenticator],
    limits: Limits | None = None,
    allowed_hosts: Sequence[str] = ("127.0.0.1", "localhost", "[::1]"),
    pools: "Sequence[SessionPool]" = (),
    calls: "Mapping[str, CallSource] | None" = None,
    python: "SessionPool | PythonSessions | None" = None,
) -> Starlette:
    """Return an ASGI application that serves the runtime. Mount it anywhere, or pass it to any ASGI server.

    ``auth`` identifies the sender of a request; several are tried in order. Requests are accepted for ``allowed_hosts``
    only, so that a page of another site cannot reach the server by a name of its own. Decisions and denied requests are
    recorded in the audit log of the store. ``calls`` are realtime agents that pages can call, or functions that make a
    :class:`RealtimeRunner` for each call. With ``python``, users run code of their own in the workspaces of their
    sessions, in workers of that pool: only its sandbox confines that code.

    The runtime, its agents and the pools stay the caller's. Set ``app.state.service.draining`` to end all streams,
    calls and cells before the server stops; ``app.state.service.close()`` does so, and waits for the cells.
    """
    authenticators = tuple(auth) if isinstance(auth, Sequence) else (auth,)
    if not authenticators:
        raise InvalidInput("auth must have at least one authenticator: without one, anyone could send requests")
    service = Service(
        runtime,
        authenticators,
        limits=limits or Limits(),
        pools=tuple(pools),
        python=python,
        call_sources=calls or {},
    )
    app = Starlette(
        routes=[
            *make_routes(service, ENDPOINTS),
            Route("/openapi.json", show_openapi),
            Route("/docs", ApiPage(describe_api).__call__),
            *ConsolePages(service).routes,
        ],
        exception_handlers={404: answer_unknown_path, 405: answer_unknown_method},
    )
    app.add_middleware(OriginChecks, allowed_hosts=tuple(allowed_hosts), service=service)
    app.state.service = service
    return app


@functools.cache
def describe_api() -> dict[str, Any]:
    """Return the OpenAPI document, which is made on the first request: most processes never get one."""
    return build_openapi(ENDPOINTS)


async def show_openapi(request: Request) -> Response:
    return Response(msgspec.json.encode(describe_api()), media_type="application/json")


async def answer_unknown_path(request: Request, error: Any) -> Response:
    return make_response(make_problem(NotFound("path", request.scope["path"])))


class MethodNotAllowed(RequestError):
    code = "method-not-allowed"
    status = HTTPStatus.METHOD_NOT_ALLOWED


async def answer_unknown_method(request: Request, error: Any) -> Response:
    response = make_response(make_problem(MethodNotAllowed(f"{request.method} is not possible here")))
    response.headers["allow"] = error.headers["Allow"]
    return response
