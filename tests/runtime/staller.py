"""A process whose run is inside a tool for long; it is stopped there, and let go on when another one owns the run."""

import asyncio
import sys
from typing import Any

import crasher

from holdfast import Agent, Runtime, function_tool


async def main(url: str, effects: str) -> None:
    [shop] = crasher.agents(effects)

    @function_tool
    async def charge(order: str) -> str:
        print("inside the tool", flush=True)
        await asyncio.sleep(60)
        return "too late"

    agent: Agent[Any] = shop.clone(tools=[charge])
    async with Runtime.open(url, agents=[agent], lease=crasher.LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        await run.wait()
        while run.local:  # noqa: ASYNC110 - nothing else tells
            await asyncio.sleep(0.01)
        print("passed on", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
