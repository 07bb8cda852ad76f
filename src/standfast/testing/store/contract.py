"""What every storage backend must do, as a suite to subclass.

A backend joins with a few lines in a test module; every ``test_`` then runs against it::

    class TestMyBackend(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path, clock):
            return lambda: owned(MyBackend(tmp_path / "store", clock=clock))

``reopen()`` opens *the same storage* each time, empty when the test begins, as an async context manager; it may be
open more than once at a time. The rest is optional:

=====================  =================================================================================
``durable = False``    the storage is gone when it is closed, and cannot be opened twice at a time
``runs = False``       histories and leases only: no run records, journals, events and approvals
``failing_after``      fixture: a :class:`~standfast.testing.faults.FailingAfter` of the backend's driver
``corrupt``            fixture: ``await corrupt(backend, session_id, position, data)`` overwrites a stored
                       record behind the backend's back; ``None`` deletes it
``stored``             fixture: ``await stored(backend)`` looks past the backend at every item in its storage,
                       by ``(tape, seq)``
``examples``           how many random programs the state machines try
=====================  =================================================================================

Clauses that need something the backend does not supply are skipped, so that a report shows what was not proven.
"""

from standfast.testing.faults import FakeClock, FaultInjector, Reopen
from standfast.testing.store.atomicity import LifetimeClauses
from standfast.testing.store.concurrency import ConcurrencyClauses
from standfast.testing.store.fixtures import StoredItemsReader, StoreFixtures
from standfast.testing.store.forks import StoreForkClauses
from standfast.testing.store.histories import AnnotationClauses, AppendClauses, ViewUpdateClauses
from standfast.testing.store.reads import ReadClauses
from standfast.testing.store.runs import LeaseClauses, RunClauses
from standfast.testing.store.state_machine import run_commit_machine


class RandomCommitClauses(StoreFixtures):
    """Random commits, side by side with the reference."""

    def test_random_commits_leave_what_the_reference_leaves(
        self,
        reopen: Reopen,
        clock: FakeClock,
        faults_if_any: FaultInjector | None,
        stored_if_any: StoredItemsReader | None,
    ) -> None:
        run_commit_machine(
            reopen,
            clock=clock,
            runs=self.runs,
            failing_after=faults_if_any,
            stored=stored_if_any,
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
    """Subclass this in a test module and supply the fixture ``reopen``."""
