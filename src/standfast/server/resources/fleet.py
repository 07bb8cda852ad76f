"""``/fleet``: the queues in which runs wait, the runtimes that execute them, and the pools of workers."""

from typing import Any

import msgspec

from standfast.runtime.types import QueueInfo, RuntimeInfo
from standfast.server.access import OPERATE
from standfast.server.endpoints import EndpointTable
from standfast.server.exchange import Exchange

endpoints = EndpointTable()


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """All queues and runtimes of the store, and the pools of this server; one over Ray has its ``nodes``."""

    queues: list[QueueInfo]
    runtimes: list[RuntimeInfo]
    pools: list[dict[str, Any]]


@endpoints.add("GET", "/fleet", OPERATE, result=FleetView)
async def get_fleet(exchange: Exchange) -> FleetView:
    """Show the queues in which runs wait, the runtimes that execute them, and the nodes of worker pools."""
    runtime = exchange.service.runtime
    return FleetView(
        queues=await runtime.queues(),
        runtimes=await runtime.runtimes(),
        pools=[dict(pool.info()) for pool in exchange.service.pools],
    )
