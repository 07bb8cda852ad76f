"""A runtime of a fleet that executes runs with a tool that must be called once and with Python on Ray.

python fault_process.py URL EFFECTS RAY_ADDRESS RUNS SESSIONS
"""

import asyncio
import sys
from contextlib import suppress
from typing import Any

from standfast import Agent, ApprovalSettled, FunctionModel, Runtime, ToolContext, function_tool, python_tool
from standfast.fleet import RayPool
from standfast.workers import PoolConfig, PythonSessions

LEASE = 2.0
LABELS = {"standfast-pool": "workers"}
CELL = "n = globals().get('n', 0) + 1\nprint('n =', n)"


def make_agent(effects: str, pool: RayPool) -> Agent[Any]:
    @function_tool
    async def charge(ctx: ToolContext[Any], order: str) -> str:
        with open(effects, "a") as file:  # noqa: ASYNC230 - it must be there when the process dies
            file.write(f"{ctx.idempotency_key}\n")
        return "charged"

    def decide(request: Any) -> Any:
        start = max(place for place, item in enumerate(request.input) if item.get("role") == "user")
        made = sum(item.get("type") == "function_call_output" for item in request.input[start:])
        if made == 4:
            return "done"
        if made % 2:
            return FunctionModel.call("run_python", code=CELL)
        return FunctionModel.call("charge", order=str(made))

    sessions = PythonSessions(pool, timeout=15)
    return Agent("worker", tools=[charge, python_tool(sessions, timeout=15)], model=FunctionModel(decide))


async def main(url: str, effects: str, address: str, runs: str, sessions: str) -> None:
    pool = RayPool(PoolConfig(min_idle=0, max_sessions=4, drain_timeout=1), address=address, labels=LABELS)
    while True:
        try:
            await pool.start()
            break
        except Exception as problem:  # the head is away: another process may begin without
            print(problem, file=sys.stderr, flush=True)
            pool = RayPool(PoolConfig(min_idle=0, max_sessions=4, drain_timeout=1), address=address, labels=LABELS)
            await asyncio.sleep(1)
    async with Runtime.open(url, agents=[make_agent(effects, pool)], lease=LEASE, max_runs=4) as runtime:
        for n in range(int(runs)):
            await runtime.start("worker", f"u{n}", session_id=f"s{n % int(sessions)}", key=f"k{n}", max_turns=30)
        while True:
            for asked in await runtime.approvals(status="pending"):
                with suppress(ApprovalSettled):
                    await runtime.decide(asked.id, "done", output="charged before")
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
