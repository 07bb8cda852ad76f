"""The agent of the demo, run as ``python -m standfast.cli.commands.demo_agent STORE LEDGER [INPUT]``.

It computes in a sandboxed Python worker and, after approval, pays by writing a line to a ledger.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from standfast.agents.agent import Agent
from standfast.agents.function_tool import function_tool
from standfast.agents.tools import FunctionTool
from standfast.base.items import Item
from standfast.models.function_model import FunctionModel
from standfast.models.request import ModelRequest
from standfast.runtime.runtime import Runtime
from standfast.tool_calls.python_tool import python_tool
from standfast.workers.config import PoolConfig, SandboxPolicy, SessionConfig
from standfast.workers.pool import SessionPool

SESSION = "invoices-of-march"
REQUEST = "Ann, Bo and Cy sent invoices over 800, 1100 and 300 euros, before 19 % tax. Pay them in one sum."
LEASE = 1.0
BANK_SECONDS = 3.0
"""How long the bank takes to answer, after it has written its line."""

CODE = """\
invoices = {"Ann": 800, "Bo": 1100, "Cy": 300}
total = round(sum(invoices.values()) * 1.19, 2)
total
"""


def make_payment_tool(ledger: Path) -> FunctionTool:
    async def pay(to: str, amount: float) -> str:
        """Make a payment.

        Args:
            to: The recipient.
            amount: The amount in euros.
        """
        with ledger.open("a", encoding="utf-8") as lines:
            lines.write(f"{amount:.2f} to {to}\n")
        await asyncio.sleep(BANK_SECONDS)
        return "the bank says: paid"

    return function_tool(pay, needs_approval=True)


def decide_next_step(request: ModelRequest) -> str | Item:
    """Choose the next step of the treasurer from the last item."""
    last = request.input[-1]
    if isinstance(last, str) or "content" in last:
        return f"I paid {find_amount_paid(request)} euros, once." if find_amount_paid(request) else make_code_call(CODE)
    if str(last["output"]).startswith("the bank"):
        return f"Done: {last['output']}."
    if "rejected" in str(last["output"]):
        return "Then I do not pay."
    return FunctionModel.call("pay", to="Ann, Bo and Cy", amount=float(last["output"]))


def make_code_call(code: str) -> Item:
    return FunctionModel.call("run_python", code=code)


def find_amount_paid(request: ModelRequest) -> str | None:
    for item in request.input:
        if isinstance(item, dict) and item.get("type") == "function_call_output" and "bank" not in str(item["output"]):
            return str(item["output"])
    return None


def create_treasurer(pool: SessionPool, ledger: Path) -> Agent[Any]:
    return Agent(
        "treasurer",
        instructions="You pay invoices. Compute sums with run_python, then pay. Say in one sentence what you did.",
        model=FunctionModel(decide_next_step),
        tools=[python_tool(pool), make_payment_tool(ledger)],
    )


@asynccontextmanager
async def open_treasurer_runtime(store: str, ledger: Path) -> AsyncIterator[Runtime]:
    """Open a worker pool and a runtime with the treasurer."""
    # The code comes from the script above, not from a model, so the demo may run where there is no sandbox.
    session = SessionConfig(sandbox=SandboxPolicy(require="plain"))
    async with (
        SessionPool(PoolConfig(session=session, min_idle=1, max_sessions=4)) as pool,
        Runtime.open(store, agents=[create_treasurer(pool, ledger)], lease=LEASE) as rt,
    ):
        yield rt


async def main(store: str, ledger: Path, request: str | None) -> None:
    """Start a run, or resume the existing one, until it waits or ends."""
    async with open_treasurer_runtime(store, ledger) as rt:
        if request is not None:
            run = await rt.start("treasurer", request, session_id=SESSION, key="march")
        else:
            run = await rt.run((await rt.runs(session_id=SESSION))[-1].run_id)
        await run.wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):  # the user stopped the demo
        asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
