"""Two processes never run code in one workspace: writes of a process that was paused for too long are refused."""

import signal

from factories.runtime import wait_for
from standfast import open_store
from standfast.store.operations import ReleaseLease
from standfast.workers import PoolConfig, PythonSessions, SessionPool


async def test_a_process_that_was_stopped_past_its_lease_writes_nothing(spawn, shared_url):
    async with (
        open_store(shared_url) as store,
        SessionPool(PoolConfig(min_idle=0, max_sessions=2)) as pool,
        spawn("append_late", shared_url) as child,
    ):
        assert await child.line() == "stops"
        lease = await store.backend.get_lease(f"workspace:{store.name_workspace('talk')}")
        await store.backend.commit(ReleaseLease(name=lease.name, token=lease.token))  # as if its time had passed
        other = PythonSessions(pool, store=store)
        async with other.session("talk") as session:  # it owns the workspace now
            child.signal(signal.SIGCONT)
            assert await child.line() == "fence-lost"
            assert (await session.run("n")).value == 1
            await session.run("n = 10")
        assert (await wait_for(other.run("n", key="talk"))).as_text() == "10"
        child.signal(signal.SIGCONT)
        # It runs no code in the variables that it has: those of the store come first.
        assert (await child.line()).endswith("11")
        other.close()
