"""The analyst of the demo, run as ``python -m standfast.cli.commands.demo_analyst STORE``.

It reads a table into a variable of a Python worker, and computes with it call by call. Run as a program, it never comes
to its last call: its model takes too long, and the demo kills it.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from standfast.agents.agent import Agent
from standfast.base.items import Item
from standfast.models.function_model import FunctionModel, FunctionRequest
from standfast.runtime.runtime import Runtime
from standfast.tool_calls.python_tool import python_tool
from standfast.workers.config import PoolConfig, SandboxPolicy, SessionConfig
from standfast.workers.pool import SessionPool

SESSION = "rain"
REQUEST = "Where did it rain most?  city,mm  Bergen,31  Oslo,12  Bergen,24  Rome,3  Oslo,18"
LEASE = 1.0
THINKING_SECONDS = 0.4
"""How long the model takes to answer. Meanwhile the variables and files of the last call are saved."""

READ = """\
open("rain.csv", "w").write("city,mm\\nBergen,31\\nOslo,12\\nBergen,24\\nRome,3\\nOslo,18\\n")
try:
    import pandas
    rain = pandas.read_csv("rain.csv")
except ImportError:
    import csv
    rain = [{**row, "mm": int(row["mm"])} for row in csv.DictReader(open("rain.csv"))]
print(len(rain), "rows in a", type(rain).__name__)
"""
SUM = """\
totals = {}
for row in rain.to_dict("records") if hasattr(rain, "to_dict") else rain:
    totals[row["city"]] = totals.get(row["city"], 0) + row["mm"]
print(totals)
"""
ANSWER = """\
most = max(totals, key=totals.get)
print(f"{most}: {totals[most]} mm, of {len(rain)} rows in a {type(rain).__name__}")
"""
CELLS = (READ, SUM, ANSWER)
PREPARATIONS = CELLS[:-1]
"""What is done when the process is killed."""


def choose_cell(request: FunctionRequest) -> str | Item:
    """Choose the next cell, and in the end answer with what the last one printed."""
    outputs = [str(item["output"]) for item in request.input if item.get("type") == "function_call_output"]
    if len(outputs) < len(CELLS):
        return FunctionModel.call("run_python", code=CELLS[len(outputs)])
    return f"It rained most in {outputs[-1].splitlines()[-1]}."


async def choose_cell_slowly(request: FunctionRequest) -> str | Item:
    """Do the same, but take some time, and forever for the last cell."""
    outputs = [item for item in request.input if item.get("type") == "function_call_output"]
    if len(outputs) == len(PREPARATIONS):
        await asyncio.Event().wait()
    await asyncio.sleep(THINKING_SECONDS)
    return choose_cell(request)


@asynccontextmanager
async def open_analyst_runtime(store: str, model: FunctionModel) -> AsyncIterator[Runtime]:
    """Open a worker pool and a runtime with the analyst."""
    # The code comes from the script above, not from a model, so the demo may run where there is no sandbox.
    session = SessionConfig(sandbox=SandboxPolicy(require="plain"))
    async with SessionPool(PoolConfig(session=session, min_idle=1, max_sessions=2)) as pool:
        analyst: Agent[Any] = Agent("analyst", tools=[python_tool(pool)], model=model)
        async with Runtime.open(store, agents=[analyst], lease=LEASE) as rt:
            yield rt


async def main(store: str) -> None:
    async with open_analyst_runtime(store, FunctionModel(choose_cell_slowly)) as rt:
        await (await rt.start("analyst", REQUEST, session_id=SESSION, key="rain")).wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # the user stopped the demo
        asyncio.run(main(sys.argv[1]))
