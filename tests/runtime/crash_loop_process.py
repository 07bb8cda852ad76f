"""A process whose run ends it again and again, and what starts it again each time.

    python crash_loop_process.py URL TRIES PLACE

``PLACE`` is ``tool`` or ``model``: where the process is killed. Each try is a line in the file ``TRIES``, the time.
Prints what the run came to when it did not end its process.
"""

import asyncio
import json
import os
import signal
import sys
import time
from typing import Any

import asyncpg  # noqa: F401 - imported once, for all that are forked
import sqlalchemy.dialects.postgresql.asyncpg
import sqlalchemy.ext.asyncio  # noqa: F401

import standfast.runtime.runtime
import standfast.store.sqlalchemy.backend  # noqa: F401
from standfast import Agent, Runtime, function_tool
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call

LEASE = 0.2


def shop(*, tries: str = "", place: str = "") -> Agent[Any]:
    """An agent that charges. At ``place`` it ends its process."""

    def maybe_die(here: str) -> None:
        if here == place:
            with open(tries, "a") as file:
                file.write(f"{time.time()}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    @function_tool(idempotent=True)
    def charge() -> str:
        maybe_die("tool")
        return "charged"

    def answer(call: Any) -> list[Any]:
        maybe_die("model")
        seen = any(item.get("type") == "function_call_output" for item in call.input)
        return [assistant_message("done")] if seen else [function_call("charge", {}, call_id="c1")]

    return Agent("shop", tools=[charge], model=ScriptedModel([ModelStep.respond(answer) for _ in range(5)]))


async def main(url: str, tries: str, place: str) -> None:
    async with Runtime.open(url, agents=[shop(tries=tries, place=place)], lease=LEASE) as runtime:
        run = await runtime.start("shop", "charge", session_id="s", key="order-7")
        outcome = await run.wait()
    print(json.dumps({"id": run.id, "status": outcome.status, "error": outcome.error and outcome.error.message}))


if __name__ == "__main__":
    while True:
        child = os.fork()
        if child == 0:
            asyncio.run(main(*sys.argv[1:]))
            sys.exit()
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(os.waitstatus_to_exitcode(status))
