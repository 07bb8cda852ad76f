"""Contract suites for sessions, to be subclassed.

:class:`SessionContract` is for sessions over a store, plain or wrapped. A subclass needs a few lines::

    class TestEncryptedOverSqlite(SessionContract):
        @pytest.fixture
        def reopen(self, tmp_path, clock):
            return lambda: closing_backend(SqliteBackend(tmp_path / "store.db", clock=clock))

        def open_session(self, storage, session_id, *, settings=None):
            return EncryptedSession(session_id, StoredSession(session_id, storage, settings=settings), key)

``reopen()`` opens *the same storage* each time, which is empty at the start of a test. It yields the ``storage`` in
which ``open_session`` opens sessions. By default a storage is a backend and a session is a ``StoredSession``.

:class:`PlainSessionContract` contains only the clauses about the four methods, for third-party sessions. There,
``open_session`` must be defined, and a storage can be any object.

Everything else is optional:

=====================  =================================================================================
``durable = False``    the storage is lost when it is closed, and cannot be opened twice at a time
``one_writer = True``  only one object per session id may write at a time (it may do so concurrently)
``failing_after``      fixture: a :class:`~standfast.testing.faults.FaultInjector` for the storage's driver
``corrupt``            fixture: ``await corrupt(storage, session_id, position, data)`` overwrites a stored
                       record directly in the storage; ``None`` deletes it
``count_rows``         fixture: ``await count_rows(storage)`` counts the stored items of all sessions
``get_backend``        method: the backend of a storage, if the storage is not the backend itself
``examples``           the number of random programs of the state machine
=====================  =================================================================================

Clauses that need a fixture which is not defined are skipped, so that a report shows what was not tested.
"""

from standfast.testing.faults import FakeClock, FaultInjector, Reopen
from standfast.testing.sessions.changes import ChangeClauses
from standfast.testing.sessions.damage import DamageClauses, InputClauses, PairingClauses
from standfast.testing.sessions.fixtures import StoredSessionFixtures
from standfast.testing.sessions.forks import SessionForkClauses
from standfast.testing.sessions.plain import ResilienceClauses, SessionProtocolClauses
from standfast.testing.sessions.search import SearchClauses
from standfast.testing.sessions.state_machine import run_history_machine


class StateMachineClauses(StoredSessionFixtures):
    """Random programs, compared with the reference backend."""

    def test_random_programs_leave_what_the_reference_leaves(
        self, reopen: Reopen, clock: FakeClock, faults_if_any: FaultInjector | None
    ) -> None:
        run_history_machine(
            reopen,
            clock=clock,
            open_session=self.open_session,
            backend_getter=self.get_backend,
            failing_after=faults_if_any,
            durable=self.durable,
            examples=self.examples,
        )


class PlainSessionContract(SessionProtocolClauses, ResilienceClauses):
    """The contract of a third-party session. Subclasses define ``reopen`` and ``open_session``."""


class SessionContract(
    PlainSessionContract,
    ChangeClauses,
    SessionForkClauses,
    SearchClauses,
    DamageClauses,
    PairingClauses,
    InputClauses,
    StateMachineClauses,
):
    """The contract of a session over a store. Subclasses define ``reopen`` and, for a wrapper, ``open_session``."""
