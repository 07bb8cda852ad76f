"""``/workers``: the pools of this process and their workers."""

import asyncio
from typing import Any

from standfast.server.answers import SandboxInfo, WorkerInfo
from standfast.server.endpoints import OPERATE, EndpointTable
from standfast.server.exchange import Exchange
from standfast.workers.results import SessionInfo

endpoints = EndpointTable()


@endpoints.add("GET", "/workers", OPERATE, result=list[dict[str, Any]])
async def list_pools(exchange: Exchange) -> list[dict[str, Any]]:
    """Show the worker pools of this process: how many sessions they have, and in which states."""
    return [dict(pool.info()) for pool in exchange.service.pools]


@endpoints.add("GET", "/workers/sessions", OPERATE, result=list[WorkerInfo])
async def list_workers(exchange: Exchange) -> list[WorkerInfo]:
    """Show every worker of the pools of this process."""
    return [
        describe_worker(number, place, info)
        for number, pool in enumerate(exchange.service.pools)
        for place, info in pool.list_sessions()
    ]


@endpoints.add("GET", "/workers/sandbox", OPERATE, result=list[SandboxInfo])
async def show_sandboxes(exchange: Exchange) -> list[SandboxInfo]:
    """Show the sandbox that workers of each pool get on this machine, and why they get no stronger one.

    A worker is started to find out, once for each pool of this process.
    """
    pools = exchange.service.pools
    reports = await asyncio.gather(*(exchange.service.probe_sandbox(pool) for pool in pools))
    return [
        SandboxInfo(
            pool=number,
            level=report.level,
            required=pool.config.session.sandbox.require,
            notes=list(report.notes),
            reasons=report.reasons,
        )
        for number, (pool, report) in enumerate(zip(pools, reports, strict=True))
    ]


def describe_worker(pool: int, place: str, info: SessionInfo) -> WorkerInfo:
    return WorkerInfo(
        pool=pool,
        place=place,
        worker_id=info.session_id,
        state=info.state.value,
        created_at=info.created_at,
        last_used_at=info.last_used_at,
        executions=info.execution_count,
        errors=info.error_count,
        memory_bytes=info.memory_usage,
        cpu_percent=info.cpu_percent,
        variables=info.namespace_size,
    )
