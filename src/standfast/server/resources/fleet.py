"""``/fleet``: the queues in which runs wait, the runtimes that execute them, and the pools of workers."""

from standfast.server.answers import FleetView
from standfast.server.endpoints import OPERATE, EndpointTable
from standfast.server.exchange import Exchange

endpoints = EndpointTable()


@endpoints.add("GET", "/fleet", OPERATE, result=FleetView)
async def get_fleet(exchange: Exchange) -> FleetView:
    """Show the queues in which runs wait, the runtimes that execute them, and the nodes of worker pools."""
    runtime = exchange.service.runtime
    return FleetView(
        queues=await runtime.queues(),
        runtimes=await runtime.runtimes(),
        pools=[dict(pool.info()) for pool in exchange.service.pools],
    )
