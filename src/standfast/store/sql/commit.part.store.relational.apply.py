"""A commit, inside a transaction that the caller began and will end."""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.store import contract
from holdfast.store.contract import Op, OpResult
from holdfast.store.relational import history_writes, run_writes
from holdfast.store.relational.connection import DatabaseConnection


def apply(connection: DatabaseConnection, ops: Iterable[Op], now: float) -> list[OpResult]:
    """Do the operations in order. An exception means that the transaction must be rolled back."""
    return [_APPLIERS[type(op)](connection, op, now) for op in ops]


_APPLIERS: dict[type, Callable[[DatabaseConnection, Any, float], OpResult]] = {
    contract.Splice: history_writes.splice,
    contract.Erase: history_writes.erase,
    contract.Annotate: history_writes.annotate,
    contract.RequireVersion: history_writes.require_version,
    contract.Quarantine: history_writes.quarantine,
    contract.SaveRun: run_writes.save_run,
    contract.AppendJournal: run_writes.append_journal,
    contract.AppendEvents: run_writes.append_events,
    contract.SaveApproval: run_writes.save_approval,
    contract.AcquireLease: run_writes.acquire_lease,
    contract.RenewLease: run_writes.renew_lease,
    contract.ReleaseLease: run_writes.release_lease,
    contract.CheckFence: run_writes.check_fence,
}
