"""A process with a runtime that is killed at a point of the journal, or inside a tool.

    python crasher.py URL EFFECTS POINT SCENARIO

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


def agents(effects: str, *, deadly: bool = False, **options: Any) -> list[Agent[Any]]:
    """An agent that charges once and then says so, whatever was done before it was asked."""

    @function_tool(**options)
    async def charge(ctx: ToolContext[Any], order: str) -> str:
        with open(effects, "a") as file:  # noqa: ASYNC230 - it must be there when the process dies
            file.write(f"{ctx.idempotency_key}\n")
        if deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"charged {order}"

    def answer(call: Any) -> list[Any]:
        if any(item.get("type") == "function_call_output" for item in call.input):
            return [assistant_message("done")]
        return [function_call("charge", {"order": "7"}, call_id="c1")]

    return [Agent("shop", tools=[charge], model=ScriptedModel([ModelStep.respond(answer) for _ in range(10)]))]


async def main(url: str, effects: str, point: str) -> None:
    backend = await open_backend(url)
    store = Store(CrashingBackend(backend, "" if point == "tool" else point))
    async with Runtime.open(store, agents=agents(effects, deadly=point == "tool"), lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge 7", session_id="s", key="order-7")
        await run.wait()
    await backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
