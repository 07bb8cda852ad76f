"""``/budgets``: what runs may spend."""

from standfast.runtime.types import Budget
from standfast.server.endpoints import MANAGE, OPERATE, EndpointTable
from standfast.server.exchange import Exchange
from standfast.server.types import NewBudget

endpoints = EndpointTable()


@endpoints.add("GET", "/budgets", OPERATE, result=list[Budget])
async def list_budgets(exchange: Exchange) -> list[Budget]:
    """List all budgets by name, with what was spent of them in the current period."""
    return await exchange.runtime.budgets.list()


@endpoints.add("PUT", "/budgets/{name}", MANAGE, body=NewBudget, result=Budget)
async def set_budget(exchange: Exchange) -> Budget:
    """Create a budget, or replace the one with this name, which keeps what was spent of it."""
    name, new = exchange.path["name"], exchange.body
    limits = {"tokens": new.tokens, "cost": new.cost, "per": new.per, "owner": new.owner, "agent": new.agent}
    budget = await exchange.runtime.budgets.set(name, **limits)
    await exchange.service.record_audit("budget set", exchange.principal, {"budget": name, **limits})
    return budget


@endpoints.add("GET", "/budgets/{name}", OPERATE, result=Budget)
async def get_budget(exchange: Exchange) -> Budget:
    """Show a budget, and what was spent of it in the current period."""
    return await exchange.runtime.budgets.get(exchange.path["name"])


@endpoints.add("DELETE", "/budgets/{name}", MANAGE)
async def delete_budget(exchange: Exchange) -> None:
    """Delete a budget, and what was counted. Runs that it blocked continue."""
    name = exchange.path["name"]
    await exchange.runtime.budgets.delete(name)
    await exchange.service.record_audit("budget deleted", exchange.principal, {"budget": name})
