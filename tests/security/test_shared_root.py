"""What the workers of one fork server share, and what one of them can do to the others."""

import os
import resource

import pytest

from factories.unprivileged import run_unprivileged
from factories.workers import list_child_pids
from standfast.workers import PoolConfig, SandboxPolicy, SessionConfig, SessionPool, StartFailed, WorkerSession

CHANGES = (
    "os.chmod('/', 0)",
    "os.chmod('/etc', 0)",
    "os.utime('/etc', (1, 1))",
    "os.utime('/', (1, 1))",
    "os.setxattr('/', 'user.note', b'for another')",
    "os.setxattr('/etc', 'user.note', b'for another')",
    "os.chown('/', os.getuid(), os.getgid())",
    "os.mkdir('/note')",
    "os.symlink('/note', '/dev/note')",
    "os.rename('/tmp', '/note')",
    "os.unlink('/dev/shm')",
)
POOL = """
from standfast.workers import PoolConfig, SessionPool

async def main():
    async with SessionPool(PoolConfig(min_idle=1, max_sessions=2)) as pool:
        async with pool.acquire() as one, pool.acquire() as other:
            for change in sys.argv[1:]:
                result = await one.run(f"import os; {change}")
                print(result.error.exception_type if result.error else "done")
            print((await other.run("import os, wave; open('x', 'w').write('x'); os.stat('/').st_mode & 0o777")).value)
        async with pool.acquire() as third:
            print((await third.run("6 * 7")).value)

asyncio.run(main())
"""


def test_a_worker_cannot_change_the_root_that_others_share():
    *attempts, other, third = run_unprivileged(POOL, *CHANGES)
    assert set(attempts) <= {"OSError", "PermissionError"}, dict(zip(CHANGES, attempts, strict=True))
    assert (other, third) == (str(0o755), "42")


# The fork server keeps the user of this process, which may then change its limits.
SAME_USER = SessionConfig(sandbox=SandboxPolicy(level="plain", require="plain", run_as=os.getuid()))


def break_servers(before: set[int]) -> None:
    """Let every fork server run out of descriptors, so that its workers fail to start while it stays alive."""
    servers = list_child_pids() - before
    assert servers
    for pid in servers:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (6, 6))


@pytest.fixture
def others() -> set[int]:
    return list_child_pids()


async def test_a_session_gets_a_new_fork_server_when_workers_of_the_old_one_fail_to_start(others):
    async with WorkerSession(SAME_USER) as first:
        break_servers(others)
        second = WorkerSession(SAME_USER)
        with pytest.raises(StartFailed):
            await second.start()
        async with WorkerSession(SAME_USER) as third:
            assert (await third.run("6 * 7")).value == 42
        await second.restart()
        assert (await second.run("6 * 7")).value == 42
        assert (await first.run("6 * 7")).value == 42
        await second.shutdown()


async def test_a_pool_replaces_a_fork_server_whose_workers_fail_to_start(others):
    config = PoolConfig(session=SAME_USER, min_idle=0, breaker_backoff=0.01, breaker_backoff_limit=0.01)
    async with SessionPool(config) as pool:
        async with pool.acquire() as session:
            assert (await session.run("1")).value == 1
            break_servers(others)
            async with pool.acquire() as other:
                assert (await other.run("6 * 7")).value == 42
        assert pool.metrics["start_failures"] >= 1


GROUPS = """
from standfast.workers import WorkerSession

async def main():
    async with WorkerSession() as session:
        print(*(note for note in session.info.metadata["sandbox_notes"] if "groups" in note and "control" not in note))

asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a program groups")
def test_groups_that_the_worker_keeps_are_noted():
    assert run_unprivileged(GROUPS, groups=(4321,)) == [
        "keeps the groups 4321 of its user: only root can leave them",
    ]
    assert run_unprivileged(GROUPS) == [""]
