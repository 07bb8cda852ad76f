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
``runs = False``       histories and leases only: no run records, journals, events, approvals and documents
``failing_after``      fixture: a :class:`~standfast.testing.faults.FaultInjector` for the backend's driver
``corrupt``            fixture: ``await corrupt(backend, session_id, position, data)`` overwrites a stored
                       item without using the backend; ``None`` deletes it
``list_items``         fixture: ``await list_items(backend)`` returns all items in the storage by ``(tape, seq)``,
                       without using the backend
``examples``           the number of random programs that the state machine runs
=====================  =================================================================================

Tests that need something the backend does not supply are skipped, so that the report shows what was not tested.
"""

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from standfast.store.backend import Backend
from standfast.store.operations import (
    AcquireLease,
    Annotate,
    AppendEvents,
    AppendJournal,
    BatchKey,
    CheckFence,
    DeleteDocument,
    DeleteRun,
    DeleteWorkspace,
    DropCheckpoint,
    Erase,
    Op,
    PutDocument,
    Quarantine,
    ReleaseLease,
    RenewLease,
    RequireVersion,
    SaveApproval,
    SaveRun,
    Splice,
    ViewUpdate,
)
from standfast.store.tape import slice_spans
from standfast.testing.faults import FakeClock, FaultInjector, Reopen
from standfast.testing.state_machine import DifferentialStateMachine, fault_points, make_settings
from standfast.testing.store.approvals import ApprovalClauses
from standfast.testing.store.atomicity import LifetimeClauses
from standfast.testing.store.concurrency import ConcurrencyClauses
from standfast.testing.store.deletion import RunDeletionClauses
from standfast.testing.store.documents import DocumentClauses
from standfast.testing.store.fixtures import ListStoredItems, StoreFixtures
from standfast.testing.store.forks import StoreForkClauses
from standfast.testing.store.histories import AnnotationClauses, AppendClauses, ViewUpdateClauses
from standfast.testing.store.reads import ReadClauses
from standfast.testing.store.rewrites import RewriteClauses
from standfast.testing.store.runs import LeaseClauses, RunClauses
from standfast.testing.store.workspaces import (
    WorkspaceClauses,
    make_blob,
    make_checkpoint,
    make_versions,
    read_workspace,
)


class OpIntent(msgspec.Struct, frozen=True):
    """An operation that is completed with the state of the reference when it is applied."""

    kind: str
    which: int
    number: int
    expected: int | None


intents = st.builds(
    OpIntent,
    kind=st.sampled_from(
        [
            *("append", "append", "keyed", "reshape", "erase", "forget", "annotate", "require", "quarantine", "fork"),
            *("run", "run", "fork run", "delete run", "journal", "emit", "approval", "take", "renew", "drop", "fence"),
            *("version", "version", "blob", "blob", "checkpoint", "checkpoint", "uncheckpoint", "unwork"),
            *("document", "document", "delete document"),
        ]
    ),
    which=st.integers(0, 2),
    number=st.integers(0, 3),
    expected=st.none() | st.none() | st.integers(0, 3),
)


class CommitMachine(DifferentialStateMachine):
    """Commits of random operations, valid and invalid ones."""

    def __init__(
        self, reopen: Reopen, *, runs: bool = True, list_items: ListStoredItems | None = None, **options: Any
    ) -> None:
        super().__init__(reopen, **options)
        self.runs = runs
        self.list_items = list_items

    @rule(batch=st.lists(intents, min_size=1, max_size=4), fault=fault_points)
    def commit(self, batch: list[OpIntent], fault: int | None) -> None:
        ops = [op for intent in batch if (op := self.build_op(intent)) is not None]
        self.run_both(lambda: self.backend().commit(*ops), lambda: self.reference.commit(*ops), fault)

    @rule(which=st.integers(0, 2), fault=fault_points)
    def fork_after_rewind(self, which: int, fault: int | None) -> None:
        """Fork a session whose tape has gaps. Few programs would do that by chance and then erase it."""
        for kind, number in (("append", 3), ("reshape", 1), ("append", 2), ("fork", 3)):
            self.commit_one(OpIntent(kind, which, number, None), fault)

    def commit_one(self, intent: OpIntent, fault: int | None) -> None:
        op = self.build_op(intent)
        if op is not None:
            self.run_both(lambda: self.backend().commit(op), lambda: self.reference.commit(op), fault)

    def build_op(self, intent: OpIntent) -> Op | None:
        name = f"{self.prefix}-{intent.which}"
        data = tuple(b"%d" % index for index in range(intent.number))
        record = self.reference.tables.records.get(name)
        revision = intent.expected if intent.expected is not None else intent.number
        match intent.kind:
            case "append":
                return Splice(session_id=name, add=data, expected=intent.expected, owner="me")
            case "keyed":
                key = BatchKey(f"key-{intent.number}", f"digest-{intent.expected}")
                return Splice(session_id=name, add=(b"keyed",), key=key)
            case "reshape" if record is not None:
                to = min(intent.number, record.length)
                view = ViewUpdate(
                    slice_spans(record.view, 0, to), record.next_seq, to + len(data), intent.expected is None
                )
                return Splice(session_id=name, add=data, view_update=view, expected=record.version)
            case "fork" if record is not None:
                spans = slice_spans(record.view, 0, intent.number)
                links = {span.tape: max(end.stop for end in spans if end.tape == span.tape) for span in spans}
                return Splice(
                    session_id=f"{self.prefix}-{(intent.which + 1) % 3}",
                    view_update=ViewUpdate(spans, 0, sum(map(len, spans))),
                    expected=0,
                    links=tuple(links.items()),
                )
            case "erase" | "forget":
                return Erase(session_id=name, expected=intent.expected, forget=intent.kind == "forget")
            case "annotate":
                value = intent.number or None
                return Annotate(session_id=name, metadata={"n": value, "more": [name]}, owner="you" if value else None)
            case "require":
                return RequireVersion(name, revision)
            case "quarantine" if record is not None:
                return Quarantine(session_id=name, tape=record.tape, seq=intent.number, reason=f"{intent.expected}")
            case "take":
                return AcquireLease(name=name, owner=f"owner-{intent.number % 2}", ttl=5 + 10 * intent.number)
            case "renew":
                return RenewLease(name=name, token=revision, ttl=10)
            case "drop":
                return ReleaseLease(name=name, token=revision)
            case "fence":
                return CheckFence(name, revision)
        return self.build_run_op(intent, name, revision) if self.runs else None

    def build_run_op(self, intent: OpIntent, name: str, revision: int) -> Op | None:
        entries = tuple((f"kind-{index}", b"%d" % index) for index in range(intent.number))
        match intent.kind:
            case "run":
                status = ["running", "waiting", "done"][intent.number % 3]
                return SaveRun(run_id=name, expected=revision % 2, status=status, data=b"\x00", session_id=name)
            case "fork run":
                parent = f"{self.prefix}-{(intent.which + 1) % 3}"
                return SaveRun(run_id=name, expected=0, status="running", data=b"{}", parent=parent)
            case "delete run":
                return DeleteRun(run_id=name, expected=revision)
            case "journal":
                return AppendJournal(run_id=name, entries=entries)
            case "emit":
                return AppendEvents(run_id=name, events=entries)
            case "approval":
                expires = None if intent.number else 99.5
                return SaveApproval(
                    approval_id=name, expected=revision % 2, run_id=name, status="s", data=b"?", expires_at=expires
                )
        return self.build_workspace_op(intent, name, revision)

    def build_workspace_op(self, intent: OpIntent, name: str, revision: int) -> Op | None:
        digests = [f"{self.prefix}-d{index}" for index in range(intent.number + 1)]
        match intent.kind:
            case "version":
                stored = self.reference.tables.workspaces.get(name)
                latest = stored.version if stored and intent.expected is None else revision % 2
                return make_versions(name, latest, *(b"%d" % index for index in range(intent.number + 1)))
            case "blob":
                return make_blob(digests[-1])
            case "checkpoint":
                return make_checkpoint(name, revision, *digests[:2])
            case "uncheckpoint":
                return DropCheckpoint(key=name, version=revision)
            case "unwork":
                return DeleteWorkspace(name)
            case "document":
                return PutDocument(
                    kind=f"kind-{intent.number % 2}", key=name, data=name.encode(), expected=intent.expected
                )
            case "delete document":
                return DeleteDocument(kind=f"kind-{intent.number % 2}", key=name, expected=intent.expected)
        return None

    @invariant()
    def check_reads_match(self) -> None:
        actual = self.runner.run(self.dump(self.backend()))
        expected = self.runner.run(self.dump(self.reference))
        assert actual == expected
        if self.list_items is not None:  # after the reads, which create the tables of a new storage
            self.check_no_orphans(self.list_items)

    def check_no_orphans(self, list_items: ListStoredItems) -> None:
        """Compare the stored items themselves: an item that no read shows must not stay in the storage."""
        tables = self.reference.tables
        tapes = {*tables.erased_upto, *(tape for tape, _ in tables.tapes)}
        found: dict[Any, Any] = self.runner.run(list_items(self.backend()))  # type: ignore[arg-type]
        assert {place: data for place, data in found.items() if place[0] in tapes} == tables.tapes

    async def dump(self, backend: Backend) -> dict[str, Any]:
        """Return the results of all reads about this program. Earlier programs may have written to the same storage."""
        listed = await backend.list_sessions(owner=None, query=self.prefix, limit=100, after=None)
        reads: dict[str, Any] = {"sessions": listed, "owned": await self.list_owned(backend)}
        for record in listed:
            name = record.session_id
            generations = await backend.list_generations(name)
            reads[name] = [
                await backend.read(name),
                await backend.read(name, last=2),
                generations,
                [await backend.read(name, generation=entry.number) for entry in generations],
                await backend.list_quarantined(name),
            ]
        names = [f"{self.prefix}-{index}" for index in range(3)]
        reads["leases"] = [await backend.get_lease(name) for name in names]
        if self.runs:
            # The order of runs is only comparable within a storage, so it is omitted.
            runs = [await backend.get_run(name) for name in names]
            reads["runs"] = [run and msgspec.structs.replace(run, order=0) for run in runs]
            reads["running"] = [
                [run.run_id for run in await backend.list_runs(status=["running"], session_id=name, limit=9, after=0)]
                for name in names
            ]
            reads["journals"] = [await backend.read_journal(name, after=1) for name in names]
            reads["events"] = [await backend.read_events(name, after=0, limit=5) for name in names]
            reads["approvals"] = [await backend.get_approval(name) for name in names]
            digests = [f"{self.prefix}-d{index}" for index in range(4)]
            reads["documents"] = [
                await backend.list_documents(kind, limit=9, after=self.prefix, before=f"{self.prefix}-9")
                for kind in ("kind-0", "kind-1")
            ]
            reads["workspaces"] = [await read_workspace(backend, name, *digests) for name in names]
        return reads

    async def list_owned(self, backend: Backend) -> list[str]:
        owned = await backend.list_sessions(owner="me", query=self.prefix, limit=100, after=None)
        return [record.session_id for record in owned]


def run_commit_machine(
    reopen: Reopen,
    *,
    clock: FakeClock,
    runs: bool = True,
    failing_after: FaultInjector | None = None,
    list_items: ListStoredItems | None = None,
    durable: bool = True,
    examples: int = 20,
) -> None:
    """Run random commits on a backend and on the reference."""
    run_state_machine_as_test(
        lambda: CommitMachine(  # type: ignore[arg-type]
            reopen, runs=runs, list_items=list_items, clock=clock, failing_after=failing_after, durable=durable
        ),
        settings=make_settings(examples),
    )


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
    ApprovalClauses,
    RunDeletionClauses,
    RewriteClauses,
    LeaseClauses,
    WorkspaceClauses,
    DocumentClauses,
    ConcurrencyClauses,
    LifetimeClauses,
    RandomCommitClauses,
):
    """The whole suite. Subclass it and supply the fixture ``reopen``."""
