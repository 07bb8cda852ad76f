"""``/healthz``, ``/readyz`` and ``/info``."""

import asyncio

import msgspec
from starlette.responses import Response

from standfast import __version__
from standfast.base.errors import StandfastError
from standfast.server.endpoints import READ, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import Health, ServerInfo

endpoints = EndpointTable()

READINESS_TIMEOUT = 5.0


@endpoints.add("GET", "/healthz", None, result=Health)
async def get_health(exchange: Exchange) -> Health:
    """Tell that the process is alive."""
    return Health(status="ok")


@endpoints.add("GET", "/readyz", None, result=Health)
async def get_readiness(exchange: Exchange) -> Response:
    """Tell whether requests should be sent here: the store answers, and the server does not stop."""
    problem = "draining" if exchange.service.draining.is_set() else await find_store_problem(exchange)
    health = Health(status="ok" if problem is None else "not ready", detail=problem)
    return Response(msgspec.json.encode(health), 200 if problem is None else 503, media_type="application/json")


async def find_store_problem(exchange: Exchange) -> str | None:
    try:
        async with asyncio.timeout(READINESS_TIMEOUT):
            await exchange.runtime.store.backend.get_time()
    except TimeoutError:
        return "the store does not answer"
    except StandfastError:
        return "the store is not available"
    return None


@endpoints.add("GET", "/info", READ, result=ServerInfo)
async def get_info(exchange: Exchange) -> ServerInfo:
    """Show the version of the server, and the principal that the client is authenticated as."""
    service, principal = exchange.service, exchange.principal
    return ServerInfo(
        version=__version__,
        started_at=service.started_at,
        draining=service.draining.is_set(),
        subject=principal.subject,
        role=principal.role.name.lower(),
        owner=principal.owner,
        runs_python=service.python is not None,
        realtime_agents=sorted(service.call_sources),
    )
