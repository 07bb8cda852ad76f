"""Store contract: concurrent callers and cancellation."""

import asyncio

from standfast.store.backend import Backend
from standfast.store.records import Head
from standfast.testing.faults import FakeClock, Reopen
from standfast.testing.store.fixtures import StoreFixtures, append, read_data


class ConcurrencyClauses(StoreFixtures):
    """Concurrent and cancelled callers."""

    async def test_concurrent_first_writers_are_serialised(self, backend: Backend) -> None:
        heads = await asyncio.gather(*(append(backend, "s", b"%d" % n, b"%d" % n) for n in range(16)))
        assert sorted(heads) == [Head(version, 2 * version) for version in range(1, 17)]
        self.assert_contiguous(await read_data(backend, "s"), batches=16, size=2)

    async def test_one_of_many_writers_that_expect_a_new_session_wins(self, backend: Backend) -> None:
        answers = await asyncio.gather(
            *(append(backend, "s", b"%d" % n, expected=0) for n in range(8)), return_exceptions=True
        )
        assert sorted(type(answer).__name__ for answer in answers) == ["Head"] + ["HistoryMoved"] * 7
        assert len(await read_data(backend, "s")) == 1

    async def test_batches_of_concurrent_writers_are_complete_and_contiguous(self, backend: Backend) -> None:
        async def writer(task: int) -> None:
            for batch in range(8):
                await append(backend, "s", *[b"%d.%d" % (task, batch)] * 3)

        await asyncio.gather(*map(writer, range(8)))
        stored = await read_data(backend, "s")
        self.assert_contiguous(stored, batches=64, size=3)
        for task in range(8):
            own = [data for data in stored[::3] if data and data.startswith(b"%d." % task)]
            assert own == [b"%d.%d" % (task, batch) for batch in range(8)]

    async def test_two_connections_share_one_history(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as one, reopen_durable() as two:
            await asyncio.gather(
                *(append(backend, "s", b"%d" % n, b"%d" % n) for n, backend in enumerate([one, two] * 8))
            )
            self.assert_contiguous(await read_data(one, "s"), batches=16, size=2)
            assert await read_data(one, "s") == await read_data(two, "s")

    async def test_a_reader_never_sees_half_a_commit(self, backend: Backend) -> None:
        done = asyncio.Event()

        async def watch() -> None:
            while not done.is_set():
                stored = await read_data(backend, "s")
                assert len(stored) % 5 == 0
                await asyncio.sleep(0)

        watching = asyncio.create_task(watch())
        for n in range(20):
            await append(backend, "s", *[b"%d" % n] * 5)
        done.set()
        await watching

    async def test_sessions_written_concurrently_are_separate(self, backend: Backend) -> None:
        names = [f"session-{n}" for n in range(12)]
        await asyncio.gather(*(append(backend, name, name.encode()) for name in names for _ in range(4)))
        for name in names:
            assert await read_data(backend, name) == [name.encode()] * 4

    async def test_a_cancelled_caller_leaves_the_backend_usable(self, backend: Backend) -> None:
        for waits in range(6):
            callers = [
                asyncio.create_task(append(backend, "s", b"%d" % waits, b"%d" % waits)),
                asyncio.create_task(backend.read("s")),
                asyncio.create_task(append(backend, f"other-{waits}", b"x")),
            ]
            for _ in range(waits):
                await asyncio.sleep(0)
            for caller in callers:
                caller.cancel()
            await asyncio.gather(*callers, return_exceptions=True)
        stored = await read_data(backend, "s")
        assert stored[::2] == stored[1::2]
        head = await append(backend, "s", b"after")
        assert head.length == len(stored) + 1 == len(await read_data(backend, "s"))

    async def test_cancelling_one_caller_does_not_disturb_the_others(self, backend: Backend) -> None:
        callers = [asyncio.create_task(append(backend, "s", b"%d" % n)) for n in range(10)]
        await asyncio.sleep(0)
        for caller in callers[::2]:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
        stored = set(await read_data(backend, "s"))
        assert {b"%d" % n for n in range(1, 10, 2)} <= stored

    async def test_a_clock_that_steps_back_does_not_change_the_order(self, backend: Backend, clock: FakeClock) -> None:
        await append(backend, "s", b"a", b"b")
        newest = clock.now
        for data in (b"c", b"d"):
            clock.advance(-3600)
            await append(backend, "s", data)
        assert await read_data(backend, "s") == [b"a", b"b", b"c", b"d"]
        assert await read_data(backend, "s", last=2) == [b"c", b"d"]
        record = await backend.get_session("s")
        assert record is not None
        assert (record.created_at, record.updated_at) == (newest, newest)

    def assert_contiguous(self, found: list[bytes | None], *, batches: int, size: int) -> None:
        """Check that no batch lies within another."""
        assert len(found) == batches * size
        groups = [found[start : start + size] for start in range(0, len(found), size)]
        assert all(len(set(group)) == 1 for group in groups)
        assert len({group[0] for group in groups}) == batches
