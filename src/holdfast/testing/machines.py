"""Random programs, run against a backend and the memory reference side by side.

After each step everything readable is compared. A history is compared with a plain Python list as well, because
backend and reference share the code above them. Programs are derived from a fixed seed: a failure is reproducible
and CI does not flicker.
"""

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from holdfast.base.errors import HoldfastError
from holdfast.base.items import Item, matches, text_of, words_of
from holdfast.history.session import StoredSession
from holdfast.store.contract import (
    Annotate,
    Backend,
    BatchKey,
    DropLease,
    Emit,
    Erase,
    Fence,
    Head,
    Journal,
    Op,
    Quarantine,
    RenewLease,
    Require,
    SaveApproval,
    SaveRun,
    Shape,
    Splice,
    TakeLease,
)
from holdfast.store.memory import MemoryBackend
from holdfast.store.view import cut
from holdfast.testing.storage import FailingAfter, FakeClock

Reopen: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
MACHINE_STEPS = 30

positions = st.integers(0, 8)
few = st.integers(0, 3)
faults = st.none() | st.none() | st.integers(0, 12)


def steady(examples: int) -> settings:
    """Settings for CI: the same programs every time, and no clock to race against."""
    return settings(
        max_examples=examples,
        stateful_step_count=MACHINE_STEPS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class SideBySide(RuleBasedStateMachine):
    """An opened storage, a reference, a clock for both, and a loop to run them in."""

    def __init__(
        self, reopen: Reopen, *, clock: FakeClock, failing_after: FailingAfter | None = None, durable: bool = True
    ) -> None:
        super().__init__()
        self.reopen = reopen
        self.clock = clock
        self.failing_after = failing_after
        self.durable = durable
        self.prefix = f"x{secrets.token_hex(6)}"
        self.reference = MemoryBackend(clock=clock)
        self.runner = asyncio.Runner()
        self.opened: AbstractAsyncContextManager[Any] | None = None
        self.open()

    def open(self) -> None:
        opened = self.reopen()
        self.place = self.runner.run(opened.__aenter__())
        self.opened = opened

    def close(self) -> None:
        opened, self.opened = self.opened, None
        if opened is not None:
            self.runner.run(opened.__aexit__(None, None, None))

    def teardown(self) -> None:
        try:
            self.close()
        finally:
            self.runner.close()

    def backend(self) -> Backend:
        """The backend behind the opened place."""
        backend: Backend = self.place
        return backend

    @precondition(lambda self: self.durable)
    @rule()
    def open_again(self) -> None:
        self.close()
        self.open()

    @rule(seconds=st.integers(-5, 20))
    def turn_the_clock(self, seconds: int) -> None:
        self.clock.turn(seconds)

    def attempt(
        self, here: Callable[[], Awaitable[Any]], there: Callable[[], Awaitable[Any]], fault: int | None
    ) -> Any:
        """Do the same on both sides; their common answer, or ``None`` when an injected fault stopped it."""
        if fault is not None and self.failing_after is not None:
            with self.failing_after(fault) as injected:
                found = self.runner.run(answer(here))
            if injected.struck and isinstance(found, Exception):
                return None
        else:
            found = self.runner.run(answer(here))
        expected = self.runner.run(answer(there))
        assert described(found) == described(expected)
        return found


async def answer(call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except HoldfastError as error:
        return error


def described(found: Any) -> Any:
    """An answer as something that can be compared across backends."""
    if isinstance(found, HoldfastError):
        return (found.code, getattr(found, "expected", None), getattr(found, "found", None))
    return getattr(found, "session_id", found)


class Branch:
    """What a history should show, as plain lists."""

    def __init__(self, items: list[Item]) -> None:
        self.items = items
        self.generations: dict[int, tuple[list[Item], int]] = {}
        self.next_generation = 0

    def archive(self, added_so_far: int) -> None:
        self.generations[self.next_generation] = (list(self.items), added_so_far)
        self.next_generation += 1


class HistoryMachine(SideBySide):
    """Sessions under random programs."""

    def __init__(
        self,
        reopen: Reopen,
        *,
        open_session: Callable[[Any, str], Any],
        backend_of: Callable[[Any], Backend],
        **how: Any,
    ) -> None:
        super().__init__(reopen, **how)
        self.open_session = open_session
        self.backend_of = backend_of
        self.names = [f"{self.prefix}-{index}" for index in range(2)]
        self.branches: dict[str, Branch] = {}
        self.serial = itertools.count()
        self.added = 0

    def backend(self) -> Backend:
        return self.backend_of(self.place)

    def name(self, which: int) -> str:
        return self.names[which % len(self.names)]

    def make(self, count: int) -> list[Item]:
        """New items, all different, some with words in common."""
        numbers = [next(self.serial) for _ in range(count)]
        self.added += count
        return [{"role": "user", "content": f"item {n} word{n % 3} größe"} for n in numbers]

    def both(self, name: str, fault: int | None, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return self.attempt(
            lambda: work(self.open_session(self.place, name)),
            lambda: work(StoredSession(name, self.reference)),
            fault,
        )

    def branch(self, name: str) -> Branch:
        return self.branches.setdefault(name, Branch([]))

    @rule(
        which=positions,
        count=few,
        key=st.none() | st.sampled_from(["k1", "k2"]),
        expected=st.sampled_from([None, None, "now", "nowhere"]),
        fault=faults,
    )
    def add(self, which: int, count: int, key: str | None, expected: str | None, fault: int | None) -> None:
        name, items = self.name(which), self.make(count)
        before = self.runner.run(StoredSession(name, self.reference).head())
        head = {"now": before, "nowhere": Head(0, 0)}.get(expected or "")
        done = self.both(name, fault, lambda session: answered(session.add_items(items, key=key, expected=head)))
        after = self.runner.run(StoredSession(name, self.reference).head())
        if done is True and after != before:
            self.branch(name).items += items

    @rule(which=positions, key=st.sampled_from(["again1", "again2"]), fault=faults)
    def add_the_same_again(self, which: int, key: str, fault: int | None) -> None:
        name = self.name(which)
        items: list[Item] = [{"role": "user", "content": f"said once, {key}"}]
        before = self.runner.run(StoredSession(name, self.reference).head())
        if self.both(name, fault, lambda session: answered(session.add_items(items, key=key))) is True:
            after = self.runner.run(StoredSession(name, self.reference).head())
            if after != before:
                self.added += 1
                self.branch(name).items += items

    @rule(which=positions, fault=faults)
    def pop(self, which: int, fault: int | None) -> None:
        name = self.name(which)
        popped = self.both(name, fault, lambda session: session.pop_item())
        if isinstance(popped, dict):
            assert self.branch(name).items.pop() == popped

    @rule(which=positions, start=positions, stop=positions | st.none(), count=few, fault=faults)
    def splice(self, which: int, start: int, stop: int | None, count: int, fault: int | None) -> None:
        name, items = self.name(which), self.make(count)
        done = self.both(name, fault, lambda session: session.splice_items(start, stop, items))
        if isinstance(done, Head):
            branch = self.branch(name)
            if branch.items:
                branch.archive(next(self.serial))
            branch.items[start:stop] = items

    @rule(which=positions, to=positions, fault=faults)
    def rewind(self, which: int, to: int, fault: int | None) -> None:
        name = self.name(which)
        if isinstance(self.both(name, fault, lambda session: session.rewind(to)), Head):
            branch = self.branch(name)
            if branch.items:
                branch.archive(next(self.serial))
            del branch.items[to:]

    @rule(which=positions, count=few, fault=faults)
    def replace(self, which: int, count: int, fault: int | None) -> None:
        name, items = self.name(which), self.make(count)
        if isinstance(self.both(name, fault, lambda session: session.replace_items(items)), Head):
            branch = self.branch(name)
            if branch.items:
                branch.archive(next(self.serial))
            branch.items = list(items)

    @rule(which=positions, generation=few, fault=faults)
    def restore(self, which: int, generation: int, fault: int | None) -> None:
        name = self.name(which)
        if isinstance(self.both(name, fault, lambda session: session.restore(generation)), Head):
            branch = self.branch(name)
            earlier, marker = branch.generations[generation]
            since = [item for item in branch.items if number(item) > marker]
            branch.archive(next(self.serial))
            branch.items = earlier + since

    @rule(which=positions, at=positions | st.none(), fault=faults)
    def fork(self, which: int, at: int | None, fault: int | None) -> None:
        name, child = self.name(which), f"{self.prefix}-fork-{len(self.names)}"
        if len(self.names) < 6 and self.both(name, fault, lambda session: session.fork(at, child)) is not None:
            forked = self.runner.run(self.reference.record(child)) is not None
            self.names += [child] * forked
            if forked:
                self.branches[child] = Branch(self.branch(name).items[:at])

    @rule(which=positions, fault=faults)
    def clear(self, which: int, fault: int | None) -> None:
        name = self.name(which)
        if self.both(name, fault, lambda session: answered(session.clear_session())) is True:
            self.branch(name).items = []
            self.branch(name).generations.clear()

    @rule(which=positions, fault=faults)
    def delete(self, which: int, fault: int | None) -> None:
        name = self.name(which)
        op = Erase(session_id=name, forget=True)
        if self.attempt(lambda: self.backend().commit(op), lambda: self.reference.commit(op), fault) is not None:
            self.branches.pop(name, None)

    @rule(which=positions, key=st.sampled_from("ab"), value=st.none() | st.integers() | st.text("xyz"), fault=faults)
    def annotate(self, which: int, key: str, value: Any, fault: int | None) -> None:
        op = Annotate(session_id=self.name(which), metadata={key: value}, owner=self.prefix)
        self.attempt(lambda: self.backend().commit(op), lambda: self.reference.commit(op), fault)

    @rule(
        which=positions, query=st.sampled_from(["word1", "item", "once", "größe word2", "i"]), limit=st.integers(0, 4)
    )
    def search(self, which: int, query: str, limit: int) -> None:
        name = self.name(which)
        hits = self.both(name, None, lambda session: found_by(session, query, limit))
        shown = list(enumerate(self.branches[name].items if name in self.branches else []))
        terms = words_of(query)
        expected = [(position, item) for position, item in shown if matches(text_of(item), terms)]
        assert hits == expected[::-1][:limit]

    @invariant()
    def everything_readable_is_the_same(self) -> None:
        self.runner.run(self.compare())

    async def compare(self) -> None:
        listings = [
            [
                (record.session_id, record.head, record.owner, record.metadata, record.created_at, record.updated_at)
                for record in await backend.sessions(owner=None, query=self.prefix, limit=100, after=None)
            ]
            for backend in (self.backend(), self.reference)
        ]
        assert listings[0] == listings[1]
        for name in self.names:
            here = await everything(self.open_session(self.place, name))
            there = await everything(StoredSession(name, self.reference))
            assert here == there
            branch = self.branches.get(name) or Branch([])
            assert here["items"] == branch.items
            assert here["shown before"] == {key: items for key, (items, _) in branch.generations.items()}


def number(item: Item) -> int:
    """The serial number in a made item; an item that may come twice counts as the oldest."""
    words = item["content"].split()
    return int(words[1]) if words[0] == "item" else -1


async def answered(call: Awaitable[None]) -> bool:
    await call
    return True


async def found_by(session: Any, query: str, limit: int) -> list[tuple[int, Item]]:
    return [(hit.position, hit.item) for hit in await session.search(query, limit=limit)]


async def everything(session: Any) -> dict[str, Any]:
    """All that a session shows."""
    report = await session.check()
    generations = await session.generations()
    return {
        "head": await session.head(),
        "items": await session.get_items(),
        "latest": await session.get_items(limit=2),
        "report": (report.head, report.readable, report.corrupt, report.unpaired, len(report.quarantined)),
        "generations": [(entry.number, entry.length, entry.replaced_at) for entry in generations],
        "shown before": {entry.number: await session.get_items(generation=entry.number) for entry in generations},
    }


def try_histories(
    reopen: Reopen,
    *,
    clock: FakeClock,
    open_session: Callable[[Any, str], Any],
    backend_of: Callable[[Any], Backend],
    failing_after: FailingAfter | None = None,
    durable: bool = True,
    examples: int = 20,
) -> None:
    """Drive sessions of a place and of the reference through random programs."""
    run_state_machine_as_test(
        lambda: HistoryMachine(  # type: ignore[arg-type]
            reopen,
            open_session=open_session,
            backend_of=backend_of,
            clock=clock,
            failing_after=failing_after,
            durable=durable,
        ),
        settings=steady(examples),
    )


# --- commits --------------------------------------------------------------------------------------


class Intent(msgspec.Struct, frozen=True):
    """An operation before it is known what it acts on."""

    kind: str
    which: int
    number: int
    expected: int | None


intents = st.builds(
    Intent,
    kind=st.sampled_from(
        [
            *("append", "append", "keyed", "reshape", "erase", "forget", "annotate", "require", "quarantine", "fork"),
            *("run", "run", "journal", "emit", "approval", "take", "renew", "drop", "fence"),
        ]
    ),
    which=st.integers(0, 2),
    number=st.integers(0, 3),
    expected=st.none() | st.none() | st.integers(0, 3),
)


class CommitMachine(SideBySide):
    """Whole commits of random operations, good and bad ones mixed."""

    def __init__(self, reopen: Reopen, *, runs: bool = True, **how: Any) -> None:
        super().__init__(reopen, **how)
        self.runs = runs

    @rule(wanted=st.lists(intents, min_size=1, max_size=4), fault=faults)
    def commit(self, wanted: list[Intent], fault: int | None) -> None:
        ops = [op for intent in wanted if (op := self.realised(intent)) is not None]
        self.attempt(lambda: self.backend().commit(*ops), lambda: self.reference.commit(*ops), fault)

    def realised(self, intent: Intent) -> Op | None:
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
                shape = Shape(cut(record.view, 0, to), record.next_seq, to + len(data), intent.expected is None)
                return Splice(session_id=name, add=data, shape=shape, expected=record.version)
            case "fork" if record is not None:
                shown = cut(record.view, 0, intent.number)
                links = {span.tape: max(end.stop for end in shown if end.tape == span.tape) for span in shown}
                return Splice(
                    session_id=f"{self.prefix}-{(intent.which + 1) % 3}",
                    shape=Shape(shown, 0, sum(map(len, shown))),
                    expected=0,
                    links=tuple(links.items()),
                )
            case "erase" | "forget":
                return Erase(session_id=name, expected=intent.expected, forget=intent.kind == "forget")
            case "annotate":
                value = intent.number or None
                return Annotate(session_id=name, metadata={"n": value, "more": [name]}, owner="you" if value else None)
            case "require":
                return Require(name, revision)
            case "quarantine" if record is not None:
                return Quarantine(session_id=name, tape=record.tape, seq=intent.number, reason=f"{intent.expected}")
            case "take":
                return TakeLease(name=name, owner=f"owner-{intent.number % 2}", ttl=5 + 10 * intent.number)
            case "renew":
                return RenewLease(name=name, token=revision, ttl=10)
            case "drop":
                return DropLease(name=name, token=revision)
            case "fence":
                return Fence(name, revision)
        return self.about_a_run(intent, name, revision) if self.runs else None

    def about_a_run(self, intent: Intent, name: str, revision: int) -> Op | None:
        entries = tuple((f"kind-{index}", b"%d" % index) for index in range(intent.number))
        match intent.kind:
            case "run":
                status = ["running", "waiting", "done"][intent.number % 3]
                return SaveRun(run_id=name, expected=revision % 2, status=status, data=b"\x00", session_id=name)
            case "journal":
                return Journal(run_id=name, entries=entries)
            case "emit":
                return Emit(run_id=name, events=entries)
            case "approval":
                expires = None if intent.number else 99.5
                return SaveApproval(
                    approval_id=name, expected=revision % 2, run_id=name, status="s", data=b"?", expires_at=expires
                )
        return None

    @invariant()
    def everything_readable_is_the_same(self) -> None:
        here = self.runner.run(self.seen(self.backend()))
        there = self.runner.run(self.seen(self.reference))
        assert here == there

    async def seen(self, backend: Backend) -> dict[str, Any]:
        """All reads of what this program wrote; other programs may have written to the same storage before."""
        listed = await backend.sessions(owner=None, query=self.prefix, limit=100, after=None)
        found: dict[str, Any] = {"sessions": listed, "owned": await self.owned(backend)}
        for record in listed:
            name = record.session_id
            generations = await backend.generations(name)
            found[name] = [
                await backend.read(name),
                await backend.read(name, last=2),
                generations,
                [await backend.read(name, generation=entry.number) for entry in generations],
                await backend.quarantined(name),
            ]
        names = [f"{self.prefix}-{index}" for index in range(3)]
        found["leases"] = [await backend.lease(name) for name in names]
        if self.runs:
            # The order of runs is only comparable within a storage, so it is left out.
            runs = [await backend.run(name) for name in names]
            found["runs"] = [run and msgspec.structs.replace(run, order=0) for run in runs]
            found["running"] = [
                [run.run_id for run in await backend.runs(status=["running"], session_id=name, limit=9, after=0)]
                for name in names
            ]
            found["journals"] = [await backend.journal(name, after=1) for name in names]
            found["events"] = [await backend.events(name, after=0, limit=5) for name in names]
            found["approvals"] = [await backend.approval(name) for name in names]
        return found

    async def owned(self, backend: Backend) -> list[str]:
        mine = await backend.sessions(owner="me", query=self.prefix, limit=100, after=None)
        return [record.session_id for record in mine]


def try_commits(
    reopen: Reopen,
    *,
    clock: FakeClock,
    runs: bool = True,
    failing_after: FailingAfter | None = None,
    durable: bool = True,
    examples: int = 20,
) -> None:
    """Drive a backend and the reference through random commits."""
    run_state_machine_as_test(
        lambda: CommitMachine(  # type: ignore[arg-type]
            reopen, runs=runs, clock=clock, failing_after=failing_after, durable=durable
        ),
        settings=steady(examples),
    )
