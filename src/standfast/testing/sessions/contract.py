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

:class:`PlainSessionContract` contains only the tests of the four methods, for third-party sessions. There,
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

Tests that need a fixture which is not defined are skipped, so that a report shows what was not tested.
"""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from standfast.base.items import Item
from standfast.base.text import extract_text, extract_words, matches_terms
from standfast.history.stored_session import StoredSession
from standfast.store.backend import Backend
from standfast.store.operations import Annotate, Erase
from standfast.store.records import Head
from standfast.testing.faults import FakeClock, FaultInjector, Reopen
from standfast.testing.sessions.changes import ChangeClauses
from standfast.testing.sessions.damage import DamageClauses, InputClauses, PairingClauses
from standfast.testing.sessions.fixtures import StoredSessionFixtures
from standfast.testing.sessions.forks import SessionForkClauses
from standfast.testing.sessions.plain import ResilienceClauses, SessionProtocolClauses
from standfast.testing.sessions.search import SearchClauses
from standfast.testing.state_machine import (
    DifferentialStateMachine,
    fault_points,
    make_settings,
    positions,
    small_counts,
)


class ExpectedHistory:
    """The expected items and generations of a history, as plain lists."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.generations: dict[int, tuple[list[Item], int]] = {}
        self.next_generation = 0
        self.keyed_batches: dict[str, list[Item]] = {}

    def archive(self, marker: int) -> None:
        self.generations[self.next_generation] = (list(self.items), marker)
        self.next_generation += 1


class HistoryMachine(DifferentialStateMachine):
    """A state machine whose rules are calls of sessions."""

    def __init__(
        self,
        reopen: Reopen,
        *,
        open_session: Callable[[Any, str], Any],
        backend_getter: Callable[[Any], Backend],
        **options: Any,
    ) -> None:
        super().__init__(reopen, **options)
        self.open_session = open_session
        self.backend_getter = backend_getter
        self.session_ids = [f"{self.prefix}-{index}" for index in range(2)]
        self.expected_histories: dict[str, ExpectedHistory] = {}
        self.serial_numbers = itertools.count()

    def backend(self) -> Backend:
        return self.backend_getter(self.storage)

    def pick_session_id(self, index: int) -> str:
        return self.session_ids[index % len(self.session_ids)]

    def make_items(self, count: int) -> list[Item]:
        """Return new items, all different, some with words in common."""
        numbers = [next(self.serial_numbers) for _ in range(count)]
        return [{"role": "user", "content": f"item {n} word{n % 3} größe"} for n in numbers]

    def run_session_call(self, name: str, fault: int | None, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Call a session and its reference, and return their common result; ``None`` after an injected fault."""
        return self.run_both(
            lambda: call(self.open_session(self.storage, name)),
            lambda: call(StoredSession(name, self.reference)),
            fault,
        )

    def get_expected(self, name: str) -> ExpectedHistory:
        return self.expected_histories.setdefault(name, ExpectedHistory([]))

    @rule(
        which=positions,
        count=small_counts,
        key=st.none() | st.sampled_from(["k1", "k2"]),
        expected=st.sampled_from([None, None, "current", "initial"]),
        fault=fault_points,
    )
    def add(self, which: int, count: int, key: str | None, expected: str | None, fault: int | None) -> None:
        name, items = self.pick_session_id(which), self.make_items(count)
        before = self.runner.run(StoredSession(name, self.reference).head())
        head = {"current": before, "initial": Head(0, 0)}.get(expected or "")
        done = self.run_session_call(
            name, fault, lambda session: await_success(session.add_items(items, key=key, expected=head))
        )
        after = self.runner.run(StoredSession(name, self.reference).head())
        if done is True and after != before:
            self.get_expected(name).items += items

    @rule(which=positions, key=st.sampled_from(["again1", "again2"]), fault=fault_points)
    def retry_keyed_batch(self, which: int, key: str, fault: int | None) -> None:
        name = self.pick_session_id(which)
        items = self.get_expected(name).keyed_batches.get(key) or self.make_items(1)
        before = self.runner.run(StoredSession(name, self.reference).head())
        if self.run_session_call(name, fault, lambda session: await_success(session.add_items(items, key=key))) is True:
            after = self.runner.run(StoredSession(name, self.reference).head())
            if after != before:
                self.get_expected(name).items += items
                self.get_expected(name).keyed_batches[key] = items

    @rule(which=positions, fault=fault_points)
    def pop(self, which: int, fault: int | None) -> None:
        name = self.pick_session_id(which)
        popped = self.run_session_call(name, fault, lambda session: session.pop_item())
        if isinstance(popped, dict):
            assert self.get_expected(name).items.pop() == popped

    @rule(which=positions, start=positions, stop=positions | st.none(), count=small_counts, fault=fault_points)
    def splice(self, which: int, start: int, stop: int | None, count: int, fault: int | None) -> None:
        name, items = self.pick_session_id(which), self.make_items(count)
        done = self.run_session_call(name, fault, lambda session: session.splice_items(start, stop, items))
        if isinstance(done, Head):
            history = self.get_expected(name)
            if history.items:
                history.archive(next(self.serial_numbers))
            history.items[start:stop] = items

    @rule(which=positions, to=positions, fault=fault_points)
    def rewind(self, which: int, to: int, fault: int | None) -> None:
        name = self.pick_session_id(which)
        if isinstance(self.run_session_call(name, fault, lambda session: session.rewind(to)), Head):
            history = self.get_expected(name)
            if history.items:
                history.archive(next(self.serial_numbers))
            del history.items[to:]

    @rule(which=positions, count=small_counts, fault=fault_points)
    def replace(self, which: int, count: int, fault: int | None) -> None:
        name, items = self.pick_session_id(which), self.make_items(count)
        if isinstance(self.run_session_call(name, fault, lambda session: session.replace_items(items)), Head):
            history = self.get_expected(name)
            if history.items:
                history.archive(next(self.serial_numbers))
            history.items = list(items)

    @rule(which=positions, generation=small_counts, fault=fault_points)
    def restore(self, which: int, generation: int, fault: int | None) -> None:
        name = self.pick_session_id(which)
        if isinstance(self.run_session_call(name, fault, lambda session: session.restore(generation)), Head):
            history = self.get_expected(name)
            earlier, marker = history.generations[generation]
            since = [item for item in history.items if get_serial_number(item) > marker]
            history.archive(next(self.serial_numbers))
            history.items = earlier + since

    @rule(which=positions, at=positions | st.none(), fault=fault_points)
    def fork(self, which: int, at: int | None, fault: int | None) -> None:
        name, child = self.pick_session_id(which), f"{self.prefix}-fork-{len(self.session_ids)}"
        if (
            len(self.session_ids) < 6
            and self.run_session_call(name, fault, lambda session: session.fork(at, child)) is not None
        ):
            forked = self.runner.run(self.reference.get_session(child)) is not None
            self.session_ids += [child] * forked
            if forked:
                self.expected_histories[child] = ExpectedHistory(self.get_expected(name).items[:at])

    @rule(which=positions, fault=fault_points)
    def clear(self, which: int, fault: int | None) -> None:
        name = self.pick_session_id(which)
        if self.run_session_call(name, fault, lambda session: await_success(session.clear_session())) is True:
            self.get_expected(name).items = []
            self.get_expected(name).generations.clear()
            self.get_expected(name).keyed_batches.clear()

    @rule(which=positions, fault=fault_points)
    def delete(self, which: int, fault: int | None) -> None:
        name = self.pick_session_id(which)
        op = Erase(session_id=name, forget=True)
        if self.run_both(lambda: self.backend().commit(op), lambda: self.reference.commit(op), fault) is not None:
            self.expected_histories.pop(name, None)

    @rule(
        which=positions, key=st.sampled_from("ab"), value=st.none() | st.integers() | st.text("xyz"), fault=fault_points
    )
    def annotate(self, which: int, key: str, value: Any, fault: int | None) -> None:
        op = Annotate(session_id=self.pick_session_id(which), metadata={key: value}, owner=self.prefix)
        self.run_both(lambda: self.backend().commit(op), lambda: self.reference.commit(op), fault)

    @rule(
        which=positions, query=st.sampled_from(["word1", "item", "once", "größe word2", "i"]), limit=st.integers(0, 4)
    )
    def search(self, which: int, query: str, limit: int) -> None:
        name = self.pick_session_id(which)
        hits = self.run_session_call(name, None, lambda session: search_positions(session, query, limit))
        items = self.expected_histories[name].items if name in self.expected_histories else []
        terms = extract_words(query)
        expected = [(position, item) for position, item in enumerate(items) if matches_terms(extract_text(item), terms)]
        assert hits == expected[::-1][:limit]

    @invariant()
    def check_reads_match(self) -> None:
        self.runner.run(self.compare())

    async def compare(self) -> None:
        listings = [
            [
                (record.session_id, record.head, record.owner, record.metadata, record.created_at, record.updated_at)
                for record in await backend.list_sessions(owner=None, query=self.prefix, limit=100, after=None)
            ]
            for backend in (self.backend(), self.reference)
        ]
        assert listings[0] == listings[1]
        for name in self.session_ids:
            actual = await read_session_state(self.open_session(self.storage, name))
            assert actual == await read_session_state(StoredSession(name, self.reference))
            history = self.expected_histories.get(name) or ExpectedHistory([])
            assert actual["items"] == history.items
            assert actual["generation items"] == {key: items for key, (items, _) in history.generations.items()}


def get_serial_number(item: Item) -> int:
    """Return the serial number of an item from ``make_items``."""
    return int(item["content"].split()[1])


async def await_success(awaitable: Awaitable[None]) -> bool:
    await awaitable
    return True


async def search_positions(session: Any, query: str, limit: int) -> list[tuple[int, Item]]:
    return [(hit.position, hit.item) for hit in await session.search(query, limit=limit)]


async def read_session_state(session: Any) -> dict[str, Any]:
    """Return everything that can be read from a session."""
    report = await session.check()
    generations = await session.generations()
    return {
        "head": await session.head(),
        "items": await session.get_items(),
        "latest": await session.get_items(limit=2),
        "report": (report.head, report.readable, report.corrupt, report.unpaired, len(report.quarantined)),
        "generations": [(entry.number, entry.length, entry.replaced_at) for entry in generations],
        "generation items": {entry.number: await session.get_items(generation=entry.number) for entry in generations},
    }


def run_history_machine(
    reopen: Reopen,
    *,
    clock: FakeClock,
    open_session: Callable[[Any, str], Any],
    backend_getter: Callable[[Any], Backend],
    failing_after: FaultInjector | None = None,
    durable: bool = True,
    examples: int = 20,
) -> None:
    """Run random programs on sessions of a storage and of the reference backend."""
    run_state_machine_as_test(
        lambda: HistoryMachine(  # type: ignore[arg-type]
            reopen,
            open_session=open_session,
            backend_getter=backend_getter,
            clock=clock,
            failing_after=failing_after,
            durable=durable,
        ),
        settings=make_settings(examples),
    )


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
