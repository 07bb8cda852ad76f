"""A shop that charges for orders, in the shapes that runs can have. Any process can resume its runs."""

import os
import signal
from pathlib import Path
from typing import Any

from standfast import Agent, ToolContext, function_tool
from standfast.testing import ModelStep, ScriptedModel, assistant_message, function_call

LEASE = 0.4
SCENARIOS = ("plain", "approval", "parallel", "handoff", "nested", "nested approval", "streamed")


class Ledger:
    """What was charged: a file with a line for each effect, the call's idempotency key.

    ``deadly`` is ``before`` or ``after``, and the number of an order: the process dies there, around the effect.
    """

    def __init__(self, path: str | Path, *, deadly: str = "") -> None:
        self.path, self._deadly = Path(path), deadly
        self.path.touch()

    def charge(self, key: str, order: str) -> str:
        self._maybe_die(f"before:{order}")
        with self.path.open("a") as file:
            file.write(f"{key}\n")
        self._maybe_die(f"after:{order}")
        return charged(order)

    def _maybe_die(self, point: str) -> None:
        if point == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()


def charged(order: str) -> str:
    return f"charged {order}"


def agents(ledger: Ledger, scenario: str = "plain", **options: Any) -> list[Agent[Any]]:
    """An agent, ``shop``, that charges and then says so. Its models look at what was done before they answer.

    ``plain`` makes one call, ``parallel`` three at a time, ``handoff`` lets another agent do it, and ``nested`` uses
    another agent as a tool. With ``approval`` a person is asked first.
    """

    @function_tool(**{"needs_approval": "approval" in scenario, **options})
    async def charge(ctx: ToolContext[Any], order: str) -> str:
        return ledger.charge(ctx.idempotency_key, order)

    wanted = 3 if scenario == "parallel" else 1
    charging = [function_call("charge", {"order": str(n)}, call_id=f"charge{n}") for n in range(wanted)]
    clerk = Agent("clerk", tools=[charge], model=_model(charging))
    if scenario == "handoff":
        return [Agent("shop", handoffs=[clerk], model=_model([function_call("transfer_to_clerk", {}, call_id="h1")]))]
    if scenario.startswith("nested"):
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


def echo() -> Agent[Any]:
    """An agent, ``echo``, that repeats its last input."""

    def answer(call: Any) -> list[Any]:
        return [assistant_message(f"echo {call.input[-1]['content']}")]

    return Agent("echo", model=ScriptedModel([ModelStep.respond(answer) for _ in range(500)]))
