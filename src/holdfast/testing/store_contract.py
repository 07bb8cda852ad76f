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
``failing_after``      fixture: a :class:`~holdfast.testing.storage.FailingAfter` of the backend's driver
``corrupt``            fixture: ``await corrupt(backend, session_id, position, data)`` overwrites a stored
                       record behind the backend's back; ``None`` deletes it
``examples``           how many random programs the state machines try
=====================  =================================================================================

Clauses that need something the backend does not supply are skipped, so that a report shows what was not proven.
"""

from holdfast.testing.store_histories import HistoryClauses
from holdfast.testing.store_runs import LeaseClauses, RunClauses
from holdfast.testing.store_whole import ConcurrencyClauses, LifetimeClauses


class StoreContract(HistoryClauses, RunClauses, LeaseClauses, ConcurrencyClauses, LifetimeClauses):
    """Subclass this in a test module and supply the fixture ``reopen``."""
