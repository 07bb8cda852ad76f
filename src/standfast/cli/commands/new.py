"""``new``: write a small project to start from."""

import keyword
import re
from pathlib import Path
from typing import Annotated

import typer

from standfast.base.errors import AlreadyExists, InvalidInput
from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape

AGENT = '''\
"""The agent 'PROJECT': it looks up orders, and asks a person before it refunds one."""

import os

from standfast import Agent, FunctionModel, FunctionRequest, ToolContext, function_tool

ORDERS = {"7": 12.50, "8": 80.00}


@function_tool
def find_order(number: str) -> str:
    """Look up an order.

    Args:
        number: The number of the order.
    """
    amount = ORDERS.get(number)
    return f"order {number}: {amount:.2f} euros" if amount is not None else f"there is no order {number}"


@function_tool(needs_approval=True)
def refund(context: ToolContext[None], number: str) -> str:
    """Refund an order.

    Args:
        number: The number of the order.
    """
    # Pass this key to the payment service: the same call, repeated after a crash, is made once.
    key = context.idempotency_key
    return f"refunded {ORDERS[number]:.2f} euros (payment key {key})"


def follow_rules(request: FunctionRequest) -> str | dict[str, object]:
    """Answer without a language model, so that the project works before it has an API key."""
    last = request.input[-1]
    if last.get("type") == "function_call_output":
        return str(last["output"])
    words = str(last.get("content", "")).split()
    numbers = [word.strip(".,?!") for word in words if word.strip(".,?!").isdigit()]
    if not numbers:
        return "Which order is it? Try: refund 7"
    return FunctionModel.call("refund" if "refund" in words[0].lower() else "find_order", number=numbers[0])


agent = Agent(
    "PROJECT",
    instructions="You help customers with their orders. Look an order up before you refund it.",
    tools=[find_order, refund],
    model=None if os.environ.get("OPENAI_API_KEY") else FunctionModel(follow_rules),
)
'''

TEST = '''\
"""The agent with a scripted model: no key, no network, and the same every time."""

import asyncio
from pathlib import Path

from agent import agent
from standfast import Runtime
from standfast.testing import ScriptedModel, assistant_message, function_call


def test_a_refund_waits_for_a_person_and_survives_a_restart(tmp_path: Path) -> None:
    asyncio.run(check_refund(f"sqlite:///{tmp_path / 'test.db'}"))


async def check_refund(store: str) -> None:
    asks = [function_call("refund", {"number": "7"}, call_id="call-1")]
    first = agent.clone(model=ScriptedModel([asks]))
    async with Runtime.open(store, agents=[first]) as runtime:
        run = await runtime.start(agent.name, "Refund order 7, please.", session_id="user-7")
        outcome = await run.wait()
        assert outcome.status == "waiting"
        assert outcome.approvals[0].tool == "refund"

    # Another process, which has seen nothing of this.
    second = agent.clone(model=ScriptedModel([[assistant_message("Done.")]]))
    async with Runtime.open(store, agents=[second]) as runtime:
        await runtime.decide(outcome.approvals[0].id, "approve", by="ann")
        outcome = await (await runtime.run(run.id)).wait()
        assert (outcome.status, outcome.final_output) == ("completed", "Done.")
        items = await runtime.session("user-7").get_items()
        assert "refunded 12.50 euros" in str(items)
'''

README = """\
# PROJECT

An agent on standfast: it looks up orders, and a person approves refunds. It needs standfast with the extra `cli`, and
pytest.

    pip install pytest
    python -m pytest                # the agent with a scripted model
    standfast chat agent.py         # talk to it: "refund 7"

Without `OPENAI_API_KEY` it follows the rules in `agent.py`; with a key, a language model answers (install
`standfast[openai]` for that).

To see a run survive its process, start one and stop it where it waits:

    standfast run "refund 7" --agent agent.py --session user-7      # exit code 3: it waits for approval
    standfast approvals list
    standfast approvals approve ID --agent agent.py                 # in another terminal, or on another day

`standfast serve agent.py` shows runs and approvals in a browser (install `standfast[server]` for that), and
`standfast work agent.py` is a process that executes runs and nothing else; start several on one PostgreSQL.
"""

FILES = {"agent.py": AGENT, "test_agent.py": TEST, "README.md": README, ".gitignore": "*.db\n*.db-*\n__pycache__/\n"}


@command
async def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the agent and of the new folder.")],
    as_json: AsJson = False,
) -> None:
    """Write a small project into a new folder: an agent, a tool with approval, a test, and a README.

    standfast new refunds
    """
    write_project(Path(name))
    CommandPrinter(as_json).print_result(
        {"folder": name, "files": sorted(FILES)},
        f"{escape(name)} has {', '.join(sorted(FILES))}. Next:\n"
        f"  cd {escape(name)}\n  standfast chat agent.py\n  python -m pytest",
    )


def write_project(folder: Path) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", folder.name) or keyword.iskeyword(folder.name):
        raise InvalidInput(f"{folder.name!r} is no name for a project: use a-z, 0-9, - and _, beginning with a letter")
    if folder.exists():
        raise AlreadyExists("folder", str(folder))
    folder.mkdir(parents=True)
    for file, text in FILES.items():
        (folder / file).write_text(text.replace("PROJECT", folder.name), encoding="utf-8")
