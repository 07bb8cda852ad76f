"""``/overview``: the numbers of a first page."""

import time

from standfast.base.errors import StandfastError
from standfast.server.answers import Overview, StoreHealth
from standfast.server.auth.principals import Role
from standfast.server.endpoints import READ, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.metrics import COUNTED_STATUSES, MAX_COUNTED, count_runs

endpoints = EndpointTable()


@endpoints.add("GET", "/overview", READ, result=Overview)
async def get_overview(exchange: Exchange) -> Overview:
    """Show how many runs are queued, running, waiting and failed, the oldest approval, and the health of the store."""
    service, owner = exchange.service, exchange.owner_filter
    began = time.perf_counter()
    runs: dict[str, int] = {}
    approvals, oldest = 0, None
    try:
        await exchange.runtime.store.backend.get_time()
        store = StoreHealth(status="ok", seconds=time.perf_counter() - began)
        runs = {status: await count_runs(exchange.reads, status, owner=owner) for status in COUNTED_STATUSES}
        pending = await exchange.reads.approvals(status="pending", owner=owner, limit=MAX_COUNTED)
        approvals, oldest = len(pending), min((one.requested_at for one in pending), default=None)
    except StandfastError as problem:
        store = StoreHealth(status="not available", seconds=time.perf_counter() - began, detail=problem.code)
    is_operator = exchange.principal.role >= Role.OPERATOR
    return Overview(
        runs=runs,
        counted_up_to=MAX_COUNTED,
        approvals=approvals,
        oldest_approval_at=oldest,
        executing=exchange.service.runtime.count_executing(),
        calls=sum(owner in (None, call.principal.owner) for call in service.calls.values()),
        cells=service.cells.count_open(owner),
        store=store,
        pools=[dict(pool.info()) for pool in service.pools] if is_operator else None,
        draining=service.draining.is_set(),
    )
