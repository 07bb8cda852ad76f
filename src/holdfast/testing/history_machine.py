"""Sessions under random programs: what they show is compared with plain Python lists as well.

Backend and reference share the code above them, so comparing the two would not be enough.
"""

import itertools
from collections.abc import Awaitable, Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from holdfast.base.items import Item, matches, text_of, words_of
from holdfast.history.session import StoredSession
from holdfast.store.contract import Annotate, Backend, Erase, Head
from holdfast.testing.machines import SideBySide, faults, few, positions, steady
from holdfast.testing.storage import FailingAfter, FakeClock, Reopen


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
