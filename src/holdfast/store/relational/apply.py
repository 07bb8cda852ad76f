"""A commit, inside a transaction that the caller began and will end."""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.store import contract
from holdfast.store.contract import Op, Outcome
from holdfast.store.relational import history_writes, run_writes
from holdfast.store.relational.connection import Connection


def apply(connection: Connection, ops: Iterable[Op], now: float) -> list[Outcome]:
    """Do the operations in order. An exception means that the transaction must be rolled back."""
    return [_APPLIERS[type(op)](connection, op, now) for op in ops]


_APPLIERS: dict[type, Callable[[Connection, Any, float], Outcome]] = {
    contract.Splice: history_writes.splice,
    contract.Erase: history_writes.erase,
    contract.Annotate: history_writes.annotate,
    contract.Require: history_writes.require,
    contract.Quarantine: history_writes.quarantine,
    contract.SaveRun: run_writes.save_run,
    contract.Journal: run_writes.journal,
    contract.Emit: run_writes.emit,
    contract.SaveApproval: run_writes.save_approval,
    contract.TakeLease: run_writes.take_lease,
    contract.RenewLease: run_writes.renew_lease,
    contract.DropLease: run_writes.drop_lease,
    contract.Fence: run_writes.fence,
}
