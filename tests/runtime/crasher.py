"""A process with a runtime that is killed at a point of the journal, or inside a tool.

    python crasher.py URL EFFECTS POINT [SCENARIO]

``POINT`` is what ``holdfast.testing.CrashingBackend`` takes, or ``tool`` for a kill inside the tool, after its effect.
Every effect of a tool is a line in the file ``EFFECTS``: the call's idempotency key.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from holdfast import Agent, Runtime, Store, ToolContext, function_tool
from holdfast.store.opening import open_backend
from holdfast.testing import CrashingBackend, ModelStep, ScriptedModel, assistant_message, function_call

LEASE = 1.0


def agents(effects: str, scenario: str = "plain", *, deadly: bool = False, **options: Any) -> list[Agent[Any]]:
    """An agent, ``shop``, that charges and then says so. Its models look at what was done, so any process can go on.

    ``plain`` makes one call, ``parallel`` three at a time, ``handoff`` lets another agent do it, and ``nested`` uses
    another agent as a tool.
    """

    @function_tool(**options)
    async def charge(ctx: ToolContext[Any], order: str) -> str:
        with open(effects, "a") as file:  # noqa: ASYNC230 - it must be there when the process dies
            file.write(f"{ctx.idempotency_key}\n")
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"charged {order}"

    wanted = 3 if scenario == "parallel" else 1
    charging = [function_call("charge", {"order": str(n)}, call_id=f"charge{n}") for n in range(wanted)]
    clerk = Agent("clerk", tools=[charge], model=_model(charging))
    if scenario == "handoff":
        return [Agent("shop", handoffs=[clerk], model=_model([function_call("transfer_to_clerk", {}, call_id="h1")]))]
    if scenario == "nested":
        asking = [function_call("clerk", {"input": "charge"}, call_id="n1")]
        return [Agent("shop", tools=[clerk.as_tool("clerk", "charges")], model=_model(asking))]
    return [Agent("shop", tools=[charge], model=_model(charging))]


def _model(first: list[Any]) -> ScriptedModel:
    """Makes these calls when it has seen no output of them, and else says that all is done."""
    ids = {item.call_id for item in first}

    def answer(call: Any) -> list[Any]:
        seen = {item.get("call_id") for item in call.input if item.get("type") == "function_call_output"}
        return [assistant_message("done")] if ids <= seen else first

    return ScriptedModel([ModelStep.respond(answer) for _ in range(20)])


async def main(url: str, effects: str, point: str, scenario: str = "plain") -> None:
    backend = await open_backend(url)
    store = Store(CrashingBackend(backend, "" if point == "tool" else point))
    async with Runtime.open(store, agents=agents(effects, scenario, deadly=point == "tool"), lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge 7", session_id="s", key="order-7")
        await run.wait()
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
