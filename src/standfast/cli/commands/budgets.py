"""``budgets``: what runs may spend."""

from typing import Annotated, Any, Literal

import msgspec
import typer

from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape
from standfast.cli.commands._store import DEFAULT_STORE, StoreUrl, open_runtime, require_existing_store
from standfast.runtime.types import Budget

app = typer.Typer(no_args_is_help=True, add_completion=False)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the budget.")]


@app.command("set")
@command
async def set_(
    name: Name,
    tokens: Annotated[int | None, typer.Option(min=0, help="The most tokens, read and written together.")] = None,
    cost: Annotated[float | None, typer.Option(min=0, help="The most US dollars.")] = None,
    per: Annotated[Literal["day", "month", "ever"], typer.Option(help="The period, in UTC.")] = "month",
    owner: Annotated[str | None, typer.Option(help="Only for runs in sessions of this owner.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only for runs that start with this agent.")] = None,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Create a budget, or replace the one with this name, which keeps what was spent of it.

    standfast budgets set ann --cost 5 --per day --owner ann
    """
    async with open_runtime(store) as runtime:
        made = await runtime.budgets.set(name, tokens=tokens, cost=cost, per=per, owner=owner, agent=agent)
    row = to_row(made)
    text = f"{escape(name)}: {row['limit']} a {made.per}" if made.per != "ever" else f"{escape(name)}: {row['limit']}"
    CommandPrinter(as_json).print_result(row, f"{text}, {row['spent']} spent")


@app.command("list")
@command
async def list_(store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """List all budgets, with what was spent of them in the current period.

    standfast budgets list
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        found = await runtime.budgets.list()
    columns = ("name", "limit", "per", "spent", "owner", "agent")
    CommandPrinter(as_json).print_table(columns, [to_row(one) for one in found], empty="no budgets")


@app.command()
@command
async def delete(name: Name, store: StoreUrl = DEFAULT_STORE, as_json: AsJson = False) -> None:
    """Delete a budget. Runs that it blocked continue.

    standfast budgets delete ann
    """
    async with open_runtime(require_existing_store(store)) as runtime:
        await runtime.budgets.delete(name)
    CommandPrinter(as_json).print_result({"deleted": name}, f"deleted {escape(name)}")


def to_row(budget: Budget) -> dict[str, Any]:
    """Return the fields of a budget with those of a listing."""
    limits = [f"{budget.tokens:,} tokens"] if budget.tokens is not None else []
    limits += [f"${budget.cost:g}"] if budget.cost is not None else []
    fields: dict[str, Any] = msgspec.to_builtins(budget)
    spent = [f"{budget.spent.tokens:,} tokens"]
    if budget.cost is not None:
        spent.append(f"${budget.spent.cost:.4f}")
        if budget.spent.unpriced_tokens:
            spent.append(f"{budget.spent.unpriced_tokens:,} tokens without a known price")
    if budget.locked:
        limits, spent = ["encrypted"], []
    text = ", ".join(spent) + (" (used up)" if budget.is_used_up else "")
    return (
        {"per": budget.per, "owner": None, "agent": None}
        | fields
        | {
            "limit": " or ".join(limits),
            "spending": msgspec.to_builtins(budget.spent),
            "spent": text,
            "used_up": budget.is_used_up,
        }
    )
