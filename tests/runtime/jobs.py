"""What the processes of these tests do. Each function is the whole life of one process."""

import asyncio
import os
from typing import Any

from shop import LEASE, Ledger, agents

from holdfast import Runtime, Store, function_tool
from holdfast.runtime import RunHandle
from holdfast.store.opening import open_backend
from holdfast.testing import CrashingBackend


async def charge(url: str, ledger: str, scenario: str, point: str) -> None:
    """Drive the run of a scenario to its end, approving what it asks, and die at the point on the way.

    ``point`` is what :class:`CrashingBackend` takes, or ``tool:before:n`` and ``tool:after:n`` for a death inside the
    tool, around its effect for order ``n``. In the end it prints how many commits there were.
    """
    inside = point.removeprefix("tool:") if point.startswith("tool:") else ""
    backend = await open_backend(url)
    counted: Any = CrashingBackend(backend, "" if inside else point)
    known = agents(Ledger(ledger, deadly=inside), scenario)
    async with Runtime.open(Store(counted), agents=known, lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        while not await _ended(runtime, run, scenario):
            pass
    await backend.close()
    print(counted.written, flush=True)


async def _ended(runtime: Runtime, run: RunHandle, scenario: str) -> bool:
    if scenario == "streamed":
        async for _ in run.events():
            pass
    outcome = await run.wait()
    for asked in outcome.approvals:
        await runtime.decide(asked.id, "approve", by="the process")
    return outcome.status == "completed"


async def stall(url: str) -> None:
    """Be inside a tool for long: to be stopped there, and let go on when another process owns the run."""

    @function_tool
    async def charge(order: str) -> str:
        print("inside the tool", flush=True)
        await asyncio.sleep(60)
        return "too late"

    [shop] = agents(Ledger(os.devnull))
    async with Runtime.open(url, agents=[shop.clone(tools=[charge])], lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        while run.local:
            await asyncio.sleep(0.01)
        print("passed on", flush=True)
