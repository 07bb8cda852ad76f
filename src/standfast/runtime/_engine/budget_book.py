"""Budgets in the engine: what is left of them, and what each response of a model takes from them."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

from standfast.base.errors import WrongKey
from standfast.base.usage import Usage
from standfast.models.prices import compute_cost
from standfast.runtime._engine.run_cipher import MAGIC, RunCipher
from standfast.runtime.errors import RunTampered
from standfast.runtime.types import Budget, BudgetPeriod, RunProblem, Spending
from standfast.store.backend import Backend
from standfast.store.operations import DeleteDocument, PutDocument
from standfast.store.records import DocumentRecord

if TYPE_CHECKING:
    from standfast.runtime._engine.context import RuntimeContext

BUDGET_KIND, SPENDING_KIND = "budget", "spending"
USED_UP_CODE = "budget-used-up"
REFRESH_SECONDS = 2.0
"""Seconds after which this runtime notices what others have spent, and budgets that they have changed."""
_PAGE_SIZE = 200


class StoredBudget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A budget without what was spent of it, which is counted under its id."""

    id: str
    name: str
    tokens: int | None = None
    cost: float | None = None
    per: BudgetPeriod = "month"
    owner: str | None = None
    agent: str | None = None
    created_at: float

    def describe(self, spent: Spending) -> Budget:
        """Return the budget with what was spent of it."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "id"}
        return Budget(**fields, spent=spent)

    def describe_limits(self) -> str:
        """Return the limits for people, such as ``1,000 tokens or $5``."""
        tokens = None if self.tokens is None else f"{self.tokens:,} tokens"
        return " or ".join(filter(None, (tokens, None if self.cost is None else f"${self.cost:g}")))


def encode_budget(budget: StoredBudget, cipher: RunCipher | None) -> bytes:
    data = msgspec.json.encode(budget)
    return data if cipher is None else cipher.encrypt(data, *_locate(budget.name))


def decode_budget(document: DocumentRecord, cipher: RunCipher | None) -> StoredBudget | None:
    """Return the budget, or ``None`` if it is encrypted with another key, or not although it should be."""
    try:
        if cipher is not None:
            return msgspec.json.decode(cipher.decrypt(document.data, *_locate(document.key)), type=StoredBudget)
        if not document.data.startswith(MAGIC):
            return msgspec.json.decode(document.data, type=StoredBudget)
    except (WrongKey, RunTampered):
        pass
    return None


def require_budget(document: DocumentRecord, cipher: RunCipher | None) -> StoredBudget:
    budget = decode_budget(document, cipher)
    if budget is None:
        raise WrongKey(f"the budget {document.key!r} was written with another encryption key, or without one")
    return budget


def _locate(name: str) -> tuple[str, tuple[str, str]]:
    return f"budget:{name}", ("budget", name)


async def iterate_budgets(backend: Backend) -> AsyncIterator[DocumentRecord]:
    after = ""
    while page := await backend.list_documents(BUDGET_KIND, limit=_PAGE_SIZE, after=after):
        for document in page:
            yield document
        after = page[-1].key


async def iterate_spending(backend: Backend, budget_id: str) -> AsyncIterator[DocumentRecord]:
    """Yield what runtimes have spent of a budget; the keys are ``ID/PERIOD/RUNTIME``."""
    after, end = f"{budget_id}/", f"{budget_id}0"
    while page := await backend.list_documents(SPENDING_KIND, limit=_PAGE_SIZE, after=after, before=end):
        for document in page:
            yield document
        after = page[-1].key


async def read_spending(backend: Backend, budget: StoredBudget, *, now: float, without: str = "") -> Spending:
    """Add up what was spent of a budget in this period, and delete the counts of earlier ones."""
    total, period = Spending(), name_period(budget.per, now)
    async for document in iterate_spending(backend, budget.id):
        _, counted_period, runtime_id = document.key.split("/")
        if counted_period < period:
            await backend.commit(DeleteDocument(kind=SPENDING_KIND, key=document.key))
        elif counted_period == period and runtime_id != without:
            total += msgspec.json.decode(document.data, type=Spending)
    return total


def name_period(per: BudgetPeriod, now: float) -> str:
    """Return the name of the period at this time; those of later periods are greater."""
    day = datetime.fromtimestamp(now, UTC).date()
    return {"day": day.isoformat(), "month": f"{day:%Y-%m}", "ever": "ever"}[per]


def find_period_end(per: BudgetPeriod, now: float) -> datetime | None:
    """Return when the period at this time ends, if it does."""
    start = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if per == "day":
        return start + timedelta(days=1)
    return None if per == "ever" else (start.replace(day=1) + timedelta(days=32)).replace(day=1)


class BudgetUsedUp(Exception):
    """A run may not ask a model, because a budget is used up."""

    def __init__(self, problem: RunProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


class BudgetBook:
    """The budgets as this runtime knows them. What it spends is added to the commits of the responses.

    Each runtime counts in a document of its own, so that runtimes never wait for each other. The count in memory is
    the truth while the runtime is alive: two commits that cross may leave an earlier count in the store, which the
    next refresh replaces.
    """

    def __init__(self, ctx: "RuntimeContext") -> None:
        self._ctx = ctx
        self._budgets: list[StoredBudget] = []
        self._others: dict[str, Spending] = {}
        self._own: dict[tuple[str, str], Spending] = {}
        """By budget and period."""
        self._read_at = -REFRESH_SECONDS
        self._lock = asyncio.Lock()

    def forget(self) -> None:
        """Read the budgets again before the next request, because this runtime has changed one."""
        self._read_at = -REFRESH_SECONDS

    async def check(self, agent: str, owner: str | None) -> None:
        """Raise :class:`BudgetUsedUp` if a run of the agent and the owner may not ask a model now."""
        await self._refresh()
        for budget in self._list_for(agent, owner):
            spent = self._others.get(budget.id, Spending()) + self._get_own(budget)
            if budget.describe(spent).is_used_up:
                raise BudgetUsedUp(self._make_problem(budget))

    async def find_owner(self, session_id: str | None) -> str | None:
        """Return the owner of a run with this session, if any budget depends on owners."""
        await self._refresh()
        if session_id is None or not any(budget.owner is not None for budget in self._budgets):
            return None
        session = await self._ctx.backend.get_session(session_id)
        return None if session is None else session.owner

    async def allows(self, agent: str, session_id: str | None) -> bool:
        """Return whether a run of the agent with this session may ask a model now."""
        try:
            await self.check(agent, await self.find_owner(session_id))
        except BudgetUsedUp:
            return False
        return True

    def build_charges(self, agent: str, owner: str | None, model: str | None, usage: Usage) -> list[PutDocument]:
        """Count a response, and return the operations that store the new counts."""
        budgets = self._list_for(agent, owner)
        if not budgets:
            return []
        cost = compute_cost(model, usage) if any(budget.cost is not None for budget in budgets) else None
        unpriced = 0 if cost is not None else usage.total_tokens
        spent = Spending(tokens=usage.total_tokens, cost=cost or 0.0, unpriced_tokens=unpriced)
        for budget in budgets:
            key = budget.id, name_period(budget.per, self._ctx.clock())
            self._own[key] = self._own.get(key, Spending()) + spent
        return [self._build_count(budget) for budget in budgets]

    def _list_for(self, agent: str, owner: str | None) -> list[StoredBudget]:
        """Return the budgets of a run, in the order in which their counts are locked."""
        return [one for one in self._budgets if one.agent in (None, agent) and one.owner in (None, owner)]

    def _get_own(self, budget: StoredBudget) -> Spending:
        return self._own.get((budget.id, name_period(budget.per, self._ctx.clock())), Spending())

    def _build_count(self, budget: StoredBudget) -> PutDocument:
        period = name_period(budget.per, self._ctx.clock())
        data = msgspec.json.encode(self._get_own(budget))
        return PutDocument(kind=SPENDING_KIND, key=f"{budget.id}/{period}/{self._ctx.runtime_id}", data=data)

    def _make_problem(self, budget: StoredBudget) -> RunProblem:
        end = find_period_end(budget.per, self._ctx.clock())
        until = "" if end is None else f" at {end:%Y-%m-%d %H:%M} UTC, or"
        period = "" if end is None else f" a {budget.per}"
        return RunProblem(
            USED_UP_CODE,
            f"the budget {budget.name!r} of {budget.describe_limits()}{period} is used up: the run continues{until}"
            " when the budget is raised or deleted",
        )

    async def _refresh(self) -> None:
        async with self._lock:
            if time.monotonic() - self._read_at < REFRESH_SECONDS:
                return
            read_at, backend = time.monotonic(), self._ctx.backend
            decoded = [decode_budget(one, self._ctx.cipher) async for one in iterate_budgets(backend)]
            self._budgets = [one for one in decoded if one is not None]
            for budget in self._budgets:
                now, own = self._ctx.clock(), self._build_count(budget)
                self._others[budget.id] = await read_spending(backend, budget, now=now, without=self._ctx.runtime_id)
                stored = await backend.get_document(SPENDING_KIND, own.key)
                if self._get_own(budget) != Spending() and (stored is None or stored.data != own.data):
                    await backend.commit(self._build_count(budget))
            self._read_at = read_at
