"""The budgets of a server, with the methods of those of a runtime."""

from typing import cast

from standfast.client.connection import Connection, make_path
from standfast.runtime.types import Budget, BudgetPeriod


class RemoteBudgets:
    """The budgets of a server, see :class:`Budgets`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def set(
        self,
        name: str,
        *,
        tokens: int | None = None,
        cost: float | None = None,
        per: BudgetPeriod = "month",
        owner: str | None = None,
        agent: str | None = None,
    ) -> Budget:
        """Create a budget, or replace the one with this name, which keeps what was spent of it."""
        body = {"tokens": tokens, "cost": cost, "per": per, "owner": owner, "agent": agent}
        return cast(Budget, await self._connection.request("PUT", make_path("budgets", name), Budget, body=body))

    async def get(self, name: str) -> Budget:
        """Return the budget with this name, or raise :class:`NotFound`."""
        return cast(Budget, await self._connection.request("GET", make_path("budgets", name), Budget))

    async def delete(self, name: str) -> None:
        """Delete a budget, and what was counted. Runs that it blocked continue."""
        await self._connection.request("DELETE", make_path("budgets", name))

    async def list(self) -> list[Budget]:
        """Return all budgets by name, with what was spent of them in the current period."""
        return cast("list[Budget]", await self._connection.request("GET", "/budgets", list[Budget]))
