"""Budgets: what runs may spend in a day, in a month or ever."""

from typing import get_args

from standfast.base.errors import Conflict, InvalidInput, MissingExtra, NotFound
from standfast.base.ids import new_id, validate_name, validate_owner
from standfast.base.validation import validate_integer, validate_number
from standfast.models.prices import load_price_list
from standfast.runtime._engine.budget_book import (
    BUDGET_KIND,
    SPENDING_KIND,
    StoredBudget,
    decode_budget,
    encode_budget,
    iterate_budgets,
    iterate_spending,
    read_spending,
    require_budget,
)
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime.types import Budget, BudgetPeriod
from standfast.store.operations import DeleteDocument, PutDocument
from standfast.store.records import DocumentRecord

MAX_NAME_LENGTH = 100


class Budgets:
    """The budgets of a store, as ``runtime.budgets``.

    A run asks a model only while every budget that it belongs to has something left; otherwise it is blocked, and
    continues by itself when the next period begins or the budget is raised. What a response has cost is counted in
    the commit that stores the response. A budget can be overdrawn by the requests that are under way, by those of
    nested agents, and by what other runtimes have spent in the last two seconds.
    """

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx

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
        """Create a budget, or replace the one with this name, which keeps what was spent of it.

        Pass ``tokens``, ``cost`` in US dollars, or both. A cost needs the extra ``prices``, and does not count the
        tokens of models whose price is not known. With an ``owner`` the budget is for the runs of that owner's
        sessions, with an ``agent`` for runs that start with that agent. Days and months are those of UTC.
        """
        if validate_name("budget", name) and len(name) > MAX_NAME_LENGTH:
            raise InvalidInput(f"the name of a budget has at most {MAX_NAME_LENGTH} characters, got {len(name)}")
        if tokens is None and cost is None:
            raise InvalidInput("a budget needs tokens= or cost=")
        validate_integer("tokens", tokens, minimum=0, optional=True)
        validate_number("cost", cost, minimum=0, optional=True)
        if per not in get_args(BudgetPeriod):
            raise InvalidInput(f"unknown period {per!r}; expected {', '.join(get_args(BudgetPeriod))}")
        if cost is not None and load_price_list() is None:
            raise MissingExtra("prices", "a budget in money")
        while True:
            document = await self._ctx.backend.get_document(BUDGET_KIND, name)
            former = None if document is None else require_budget(document, self._ctx.cipher)
            budget = StoredBudget(
                id=new_id("budget") if former is None else former.id,
                name=name,
                tokens=tokens,
                cost=None if cost is None else float(cost),
                per=per,
                owner=validate_owner(owner),
                agent=None if agent is None else validate_name("agent", agent),
                created_at=await self._ctx.backend.get_time() if former is None else former.created_at,
            )
            data = encode_budget(budget, self._ctx.cipher)
            revision = 0 if document is None else document.revision
            try:
                await self._ctx.backend.commit(PutDocument(kind=BUDGET_KIND, key=name, data=data, expected=revision))
            except Conflict:
                continue
            self._ctx.budgets.forget()
            return await self._describe(budget)

    async def list(self) -> list[Budget]:
        """Return all budgets by name, with what was spent of them in the current period."""
        found = []
        async for document in iterate_budgets(self._ctx.backend):
            budget = decode_budget(document, self._ctx.cipher)
            if budget is None:
                found.append(Budget(name=document.key, created_at=document.at, locked=True))
            else:
                found.append(await self._describe(budget))
        return found

    async def get(self, name: str) -> Budget:
        """Return the budget with this name, or raise :class:`NotFound`."""
        return await self._describe(require_budget(await self._get_document(name), self._ctx.cipher))

    async def delete(self, name: str) -> None:
        """Delete a budget, and what was counted. Runs that it blocked continue."""
        document = await self._get_document(name)
        backend, budget = self._ctx.backend, decode_budget(document, self._ctx.cipher)
        await backend.commit(DeleteDocument(kind=BUDGET_KIND, key=document.key))
        self._ctx.budgets.forget()
        if budget is not None:
            async for count in iterate_spending(backend, budget.id):
                await backend.commit(DeleteDocument(kind=SPENDING_KIND, key=count.key))

    async def _describe(self, budget: StoredBudget) -> Budget:
        now = await self._ctx.backend.get_time()
        return budget.describe(await read_spending(self._ctx.backend, budget, now=now))

    async def _get_document(self, name: str) -> DocumentRecord:
        found = await self._ctx.backend.get_document(BUDGET_KIND, validate_name("budget", name))
        if found is None:
            raise NotFound("budget", name)
        return found
