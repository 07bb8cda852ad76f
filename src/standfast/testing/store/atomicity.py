"""Store contract: atomic commits, failures of the driver, closing and reopening."""

import asyncio
import contextlib
import itertools
import zlib
from collections.abc import Sequence

import pytest

from standfast.base.errors import Closed, FenceLost, HistoryMoved, StandfastError, StoreUnavailable
from standfast.store.backend import Backend
from standfast.store.operations import (
    AcquireLease,
    Annotate,
    AppendEvents,
    AppendJournal,
    BatchKey,
    CheckFence,
    DeleteWorkspace,
    DropCheckpoint,
    Erase,
    Op,
    Quarantine,
    ReleaseLease,
    RequireVersion,
    SaveApproval,
    SaveRun,
    Splice,
)
from standfast.store.records import Head, Lease
from standfast.testing.faults import FakeClock, FaultInjector, Reopen
from standfast.testing.store.fixtures import (
    CorruptRecord,
    StoreFixtures,
    append,
    dump_backend,
    make_fork,
    make_rewind,
    read_data,
)
from standfast.testing.store.workspaces import make_blob, make_checkpoint, make_versions


def make_tape_id(tag: str, number: int) -> int:
    return zlib.crc32(tag.encode()) * 10 + number


class AtomicityClauses(StoreFixtures):
    """Commits of several operations, and failures."""

    async def populate(self, backend: Backend, tag: str = "one") -> None:
        """Write data of every kind, with names that start with ``tag``."""
        await append(
            backend,
            f"{tag}-old",
            b"a",
            b"b",
            b"c",
            key=BatchKey("turn-1", "one"),
            tape=make_tape_id(tag, 1),
            owner="me",
        )
        await backend.commit(Annotate(session_id=f"{tag}-old", metadata={"title": "before"}))
        await backend.commit(await make_rewind(backend, f"{tag}-old", 2))
        await backend.commit(Quarantine(session_id=f"{tag}-old", tape=make_tape_id(tag, 1), seq=2, reason="bad"))
        await append(backend, f"{tag}-parent", b"p", b"q", tape=make_tape_id(tag, 2))
        await backend.commit(await make_fork(backend, f"{tag}-parent", f"{tag}-fork", 1))
        await backend.commit(AcquireLease(name=f"{tag}-held", owner="me", ttl=30))
        if self.runs:
            await backend.commit(
                SaveRun(run_id=f"{tag}-r", expected=0, status="running", data=b"1", session_id=f"{tag}-old"),
                AppendJournal(run_id=f"{tag}-r", entries=(("started", b"1"),)),
                AppendEvents(run_id=f"{tag}-r", events=(("message", b"1"),)),
                SaveApproval(approval_id=f"{tag}-a", expected=0, run_id=f"{tag}-r", status="pending", data=b"?"),
            )
            await backend.commit(
                *(make_versions(f"{tag}-{name}", 0, b"1", b"2") for name in ("w", "x", "y")),
                *(make_blob(f"{tag}-{name}") for name in ("d1", "d2")),
                make_checkpoint(f"{tag}-w", 1, f"{tag}-d1"),
                make_checkpoint(f"{tag}-x", 1, f"{tag}-d1"),
                make_checkpoint(f"{tag}-x", 2, f"{tag}-d2"),
            )

    async def make_ops_of_every_kind(self, backend: Backend, tag: str = "one") -> list[Op]:
        """Return operations of every kind, each of which changes something."""
        ops: list[Op] = [
            Splice(session_id=f"{tag}-new", add=(b"x", b"y"), key=BatchKey("turn-1", "two"), tape=make_tape_id(tag, 3)),
            await make_rewind(backend, f"{tag}-old", 1, b"z"),
            Annotate(session_id=f"{tag}-old", metadata={"title": "after", "more": 1}, owner="you"),
            Annotate(session_id=f"{tag}-noted", metadata={"n": 1}),
            Quarantine(session_id=f"{tag}-old", tape=make_tape_id(tag, 1), seq=0, reason="worse"),
            Erase(session_id=f"{tag}-fork"),
            Erase(session_id=f"{tag}-parent", forget=True),
            AcquireLease(name=f"{tag}-free", owner="me", ttl=30),
            ReleaseLease(name=f"{tag}-held", token=1),
        ]
        if self.runs:
            ops += [
                SaveRun(run_id=f"{tag}-r", expected=1, status="done", data=b"2"),
                SaveRun(run_id=f"{tag}-q", expected=0, status="running", data=b"1"),
                AppendJournal(run_id=f"{tag}-r", entries=(("ended", b"2"), ("started", b"3"))),
                AppendEvents(run_id=f"{tag}-r", events=(("message", b"2"),)),
                SaveApproval(approval_id=f"{tag}-a", expected=1, run_id=f"{tag}-r", status="approved", data=b"!"),
                SaveApproval(approval_id=f"{tag}-b", expected=0, run_id=f"{tag}-r", status="pending", data=b"?"),
                make_versions(f"{tag}-w", 2, b"3"),
                make_versions(f"{tag}-z", 0, b"1"),
                make_blob(f"{tag}-d3"),
                make_checkpoint(f"{tag}-w", 3, f"{tag}-d3", f"{tag}-d1"),
                DropCheckpoint(key=f"{tag}-x", version=2),
                DeleteWorkspace(f"{tag}-y"),
            ]
        return ops

    async def dump(self, backend: Backend, tag: str = "one") -> dict[str, object]:
        """Return all that the backend has under names with the tag."""
        return await dump_backend(
            backend, name_contains=f"{tag}-", runs=self.runs, leases=(f"{tag}-held", f"{tag}-free")
        )

    async def test_an_empty_commit_does_nothing(self, backend: Backend) -> None:
        assert await backend.commit() == []

    async def test_every_operation_has_its_own_result_in_order(self, backend: Backend, clock: FakeClock) -> None:
        outcomes = await backend.commit(
            Splice(session_id="s", add=(b"a",)),
            RequireVersion("s", 1),
            AcquireLease(name="l", owner="me", ttl=30),
            Annotate(session_id="s", metadata={"n": 1}),
            Splice(session_id="s", add=(b"b", b"c")),
            CheckFence("l", 1),
            Splice(session_id="t", add=(b"d",)),
        )
        assert outcomes == [
            Head(1, 1),
            None,
            Lease("l", "me", 1, clock.now + 30),
            Head(1, 1),
            Head(2, 3),
            None,
            Head(1, 1),
        ]

    async def test_operations_of_one_commit_see_those_before_them(self, backend: Backend) -> None:
        key = BatchKey("turn-1", "digest")
        outcomes = await backend.commit(
            Splice(session_id="s", add=(b"a",), key=key, expected=0),
            Splice(session_id="s", add=(b"a",), key=key, expected=0),
            Splice(session_id="s", add=(b"b",), expected=1),
            Erase(session_id="s", expected=2),
            Splice(session_id="s", add=(b"c",), expected=3),
        )
        assert outcomes == [Head(1, 1), Head(1, 1), Head(2, 2), Head(3, 0), Head(4, 1)]
        assert await read_data(backend, "s") == [b"c"]

    @pytest.mark.parametrize(
        "spoiler", [RequireVersion("one-old", 99), CheckFence("one-held", 99)], ids=["require", "fence"]
    )
    @pytest.mark.parametrize("place", ["first", "last"])
    async def test_a_failing_operation_changes_nothing(self, backend: Backend, spoiler: Op, place: str) -> None:
        await self.populate(backend)
        before = await self.dump(backend)
        ops = await self.make_ops_of_every_kind(backend)
        spoiled: Sequence[Op] = [spoiler, *ops] if place == "first" else [*ops, spoiler]
        if isinstance(spoiler, CheckFence):
            spoiled = [op for op in spoiled if not isinstance(op, ReleaseLease)]
        with pytest.raises((HistoryMoved, FenceLost)):
            await backend.commit(*spoiled)
        assert await self.dump(backend) == before
        assert len(await backend.commit(*ops)) == len(ops)

    async def test_a_driver_failure_at_any_statement_changes_nothing(
        self, backend: Backend, failing_after: FaultInjector
    ) -> None:
        before: dict[str, object] | None = None
        for statements in itertools.count():
            if before is None:  # the commit before was stored
                tag = f"try{statements}"
                await self.populate(backend, tag)
                before, ops = await self.dump(backend, tag), await self.make_ops_of_every_kind(backend, tag)
            failed = False
            with failing_after(statements) as fault:
                try:
                    await backend.commit(*ops)
                except StoreUnavailable:
                    failed = True
            # The backend may also have recovered; then the whole commit is stored.
            assert (await self.dump(backend, tag) == before) == failed
            if not fault.triggered:
                assert not failed
                break
            before = before if failed else None
        assert statements > 0

    async def test_a_lost_response_leaves_the_whole_commit_or_nothing(
        self, backend: Backend, failing_after: FaultInjector
    ) -> None:
        ops: list[Op] = [
            Splice(session_id="s", add=(b"a", b"b"), key=BatchKey("turn", "x")),
            Annotate(session_id="t", metadata={}),
        ]
        await append(backend, "other", b"x")
        for statements in itertools.count():
            with failing_after(statements, late=True) as fault, contextlib.suppress(StoreUnavailable):
                await backend.commit(*ops)
            stored = await read_data(backend, "s")
            assert stored in ([], [b"a", b"b"])
            assert (await backend.get_session("t") is not None) == bool(stored)
            await backend.commit(*ops)
            assert await read_data(backend, "s") == [b"a", b"b"]
            await backend.commit(Erase(session_id="s", forget=True), Erase(session_id="t", forget=True))
            if not fault.triggered:
                break

    async def test_a_driver_failure_while_reading_affects_one_call(
        self, backend: Backend, failing_after: FaultInjector
    ) -> None:
        await self.populate(backend)
        before = await self.dump(backend)
        for late in (False, True):
            for statements in itertools.count():
                with failing_after(statements, late=late) as fault, contextlib.suppress(StoreUnavailable):
                    await backend.read("one-old")
                if not fault.triggered:
                    break
                assert await self.dump(backend) == before
                await append(backend, f"other-{late}-{statements}", b"x")
                before = await self.dump(backend)

    async def test_a_backend_recovers_from_a_driver_failure_while_opening(
        self, reopen: Reopen, failing_after: FaultInjector
    ) -> None:
        async with reopen() as backend:
            for statements in range(12):
                with failing_after(statements), contextlib.suppress(StoreUnavailable):
                    await append(backend, "s", b"a", key=BatchKey("turn", "x"))
            await append(backend, "s", b"a", key=BatchKey("turn", "x"))
            assert await read_data(backend, "s") == [b"a"]

    async def test_a_commit_that_cannot_be_stored_fails_alone(self, backend: Backend) -> None:
        answers = await asyncio.gather(
            append(backend, "s", b"a"),
            backend.commit(Splice(session_id="s", add=(b"lost",)), RequireVersion("s", 99)),
            append(backend, "s", b"b"),
            backend.commit(Splice(session_id="s", add=(b"lost",)), CheckFence("l", 2**70)),
            append(backend, "s", b"c"),
            return_exceptions=True,
        )
        assert [isinstance(answer, Exception) for answer in answers[1::2]] == [True, True]
        assert [answer for answer in answers[::2] if isinstance(answer, Exception)] == []
        assert sorted(filter(None, await read_data(backend, "s"))) == [b"a", b"b", b"c"]

    async def test_a_damaged_item_does_not_affect_others(self, backend: Backend, corrupt: CorruptRecord) -> None:
        await append(backend, "s", b"a", b"b", b"c", b"d")
        await corrupt(backend, "s", 1, b"\xff\xfe{")
        await corrupt(backend, "s", 2, None)
        assert await read_data(backend, "s") == [b"a", b"\xff\xfe{", None, b"d"]
        assert await append(backend, "s", b"e") == Head(2, 5)
        assert await read_data(backend, "s", last=2) == [b"d", b"e"]


class LifetimeClauses(AtomicityClauses):
    """Closing and reopening."""

    async def test_everything_is_kept_after_reopening(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as backend:
            await self.populate(backend)
            before = await self.dump(backend)
        async with reopen_durable() as backend:
            assert await self.dump(backend) == before
            ops = await self.make_ops_of_every_kind(backend)
            assert len(await backend.commit(*ops)) == len(ops)

    async def test_a_batch_key_is_kept_after_reopening(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as backend:
            first = await append(backend, "s", b"a", key=BatchKey("turn", "x"))
        async with reopen_durable() as backend:
            assert await append(backend, "s", b"a", key=BatchKey("turn", "x")) == first

    async def test_writes_are_visible_to_other_connections_immediately(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as one, reopen_durable() as two:
            for n in range(5):
                await append(one, "s", b"%d" % n)
                assert len(await read_data(two, "s")) == n + 1

    async def test_concurrent_opening_creates_the_storage_once(self, reopen_durable: Reopen) -> None:
        async def write(n: int) -> None:
            async with reopen_durable() as backend:
                await append(backend, "s", b"%d" % n)

        await asyncio.gather(*map(write, range(6)))
        async with reopen_durable() as backend:
            assert len(await read_data(backend, "s")) == 6

    async def test_a_closed_backend_refuses_calls(self, reopen: Reopen) -> None:
        async with reopen() as backend:
            await append(backend, "s", b"a")
            await backend.read("s")
            await backend.close()
            calls = [
                backend.commit(Splice(session_id="s", add=(b"b",))),
                backend.get_session("s"),
                backend.read("s"),
                backend.list_sessions(owner=None, query=None, limit=1, after=None),
                backend.list_generations("s"),
                backend.list_quarantined("s"),
                backend.get_lease("l"),
            ]
            for call in calls:
                with pytest.raises(Closed):
                    await call

    async def test_closing_twice_or_before_first_use_is_allowed(self, reopen: Reopen) -> None:
        async with reopen() as backend:
            await backend.close()
            await backend.close()
            with pytest.raises(Closed):
                await backend.get_session("s")

    async def test_closing_completes_waiting_calls(self, reopen: Reopen) -> None:
        async with reopen() as backend:
            await append(backend, "s", b"first")
            callers = [asyncio.create_task(append(backend, "s", b"%d" % n)) for n in range(8)]
            callers += [asyncio.create_task(read_data(backend, "s")) for _ in range(4)]  # type: ignore[arg-type]
            await asyncio.sleep(0)
            await backend.close()
            async with asyncio.timeout(10):
                answers = await asyncio.gather(*callers, return_exceptions=True)
        for answer in answers:
            assert not isinstance(answer, BaseException) or isinstance(answer, StandfastError)
