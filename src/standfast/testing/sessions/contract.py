"""What every history session must do, as two suites to subclass.

:class:`SessionContract` is for sessions over a store, plain or decorated. They join with a few lines::

    class TestSealedOverSqlite(SessionContract):
        @pytest.fixture
        def reopen(self, tmp_path, clock):
            return lambda: owned(SqliteBackend(tmp_path / "store.db", clock=clock))

        def open_session(self, place, session_id, *, settings=None):
            return EncryptedSession(session_id, StoredSession(session_id, place, settings=settings), key)

``reopen()`` opens *the same storage* each time, empty when the test begins; what it yields is the ``place`` that
``open_session`` makes sessions in. Without ``open_session`` a place is a backend and a session a ``StoredSession``.

:class:`PlainSessionContract` is the same without what goes beyond the four methods, for sessions of third parties;
there ``open_session`` must be given and a place can be anything.

The rest is optional:

=====================  =================================================================================
``durable = False``    the storage is gone when it is closed, and cannot be opened twice at a time
``one_writer = True``  of one session id only one object at a time may write (it may do so concurrently)
``failing_after``      fixture: a :class:`~standfast.testing.faults.FailingAfter` of the storage's driver
``corrupt``            fixture: ``await corrupt(place, session_id, position, data)`` overwrites a stored
                       record behind everybody's back; ``None`` deletes it
``count_rows``         fixture: ``await count_rows(place)`` counts the stored items of all sessions
``backend_of``         the backend behind a place, when the place is not the backend itself
``examples``           how many random programs the state machine tries
=====================  =================================================================================

Clauses that need something which is not supplied are skipped, so that a report shows what was not proven.
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
    """Random programs, side by side with the reference."""

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
    """Subclass this for a session that has the four methods; supply ``reopen`` and ``open_session``."""


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
    """Subclass this for a session over a store; supply ``reopen`` and, unless it is plain, ``open_session``."""
