"""A process of a fleet: asks for all runs, by the same keys as the others, drives what it gets, answers questions.

python fleet_process.py URL EFFECTS RUNS SESSIONS
"""

import asyncio
import random
import sys
from contextlib import suppress
from typing import Any

from standfast import Agent, ApprovalSettled, Runtime, ToolContext, function_tool
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call

LEASE = 1.0
TURNS = 3


def shop(effects: str) -> Agent[Any]:
    @function_tool
    async def charge(ctx: ToolContext[Any], order: str) -> str:
        with open(effects, "a") as file:  # noqa: ASYNC230 - it must be there when the process dies
            file.write(f"{ctx.idempotency_key}\n")
        await asyncio.sleep(random.random() * 0.05)
        return "charged"

    def answer(call: Any) -> list[Any]:
        start = max(place for place, item in enumerate(call.input) if item.get("role") == "user")
        made = sum(item.get("type") == "function_call_output" for item in call.input[start:])
        name = call.input[start]["content"]
        if made >= 2 * TURNS:
            return [assistant_message(f"done {name}")]
        return [function_call("charge", {"order": name}, call_id=f"{name}-{made}-{n}") for n in range(2)]

    return Agent("shop", tools=[charge], model=ScriptedModel([ModelStep.respond(answer) for _ in range(5000)]))


async def main(url: str, effects: str, runs: str, sessions: str) -> None:
    async with Runtime.open(url, agents=[shop(effects)], lease=LEASE) as runtime:
        for n in range(int(runs)):
            session_id = f"s{n % int(sessions)}"
            await runtime.start("shop", f"u{n}", session_id=session_id, key=f"k{n}", max_turns=30)
        while True:
            for asked in await runtime.approvals(status="pending"):
                with suppress(ApprovalSettled):
                    await runtime.decide(asked.id, "done", output="charged before")
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
