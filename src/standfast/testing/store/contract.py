"""The contract suite of storage backends.

Subclass it in a test module, and every test of the suite runs against your backend::

    class TestMyBackend(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path, clock):
            return lambda: closing_backend(MyBackend(tmp_path / "store", clock=clock))

``reopen()`` returns an async context manager that opens *the same storage* each time. The storage is empty when a test
begins and may be opened several times at once. Everything else is optional:

=====================  =================================================================================
``durable = False``    the storage is lost when it is closed, and cannot be opened twice at once
``runs = False``       histories and leases only: no run records, journals, events and approvals
``failing_after``      fixture: a :class:`~standfast.testing.faults.FaultInjector` for the backend's driver
``corrupt``            fixture: ``await corrupt(backend, session_id, position, data)`` overwrites a stored
                       item without using the backend; ``None`` deletes it
``list_items``         fixture: ``await list_items(backend)`` returns all items in the storage by ``(tape, seq)``,
                       without using the backend
``examples``           the number of random programs that the state machine runs
=====================  =================================================================================

Tests that need something the backend does not supply are skipped, so that the report shows what was not tested.
"""

from standfast.testing.faults import FakeClock, FaultInjector, Reopen
from standfast.testing.store.atomicity import LifetimeClauses
from standfast.testing.store.concurrency import ConcurrencyClauses
from standfast.testing.store.fixtures import ListStoredItems, StoreFixtures
from standfast.testing.store.forks import StoreForkClauses
from standfast.testing.store.histories import AnnotationClauses, AppendClauses, ViewUpdateClauses
from standfast.testing.store.reads import ReadClauses
from standfast.testing.store.runs import LeaseClauses, RunClauses
from standfast.testing.store.state_machine import run_commit_machine


class RandomCommitClauses(StoreFixtures):
    """Random commits, compared with the reference."""

    def test_random_commits_match_the_reference(
        self,
        reopen: Reopen,
        clock: FakeClock,
        faults_if_any: FaultInjector | None,
        list_items_if_any: ListStoredItems | None,
    ) -> None:
        run_commit_machine(
            reopen,
            clock=clock,
            runs=self.runs,
            failing_after=faults_if_any,
            list_items=list_items_if_any,
            durable=self.durable,
            examples=self.examples,
        )


class StoreContract(
    AppendClauses,
    ViewUpdateClauses,
    StoreForkClauses,
    AnnotationClauses,
    ReadClauses,
    RunClauses,
    LeaseClauses,
    ConcurrencyClauses,
    LifetimeClauses,
    RandomCommitClauses,
):
    """The whole suite. Subclass it and supply the fixture ``reopen``."""
