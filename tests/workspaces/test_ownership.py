"""The lease of a workspace."""

import asyncio

from standfast.store.memory import MemoryBackend
from standfast.testing import closing_backend
from standfast.workspaces.ownership import acquire_workspace


async def test_a_lease_is_renewed_by_a_task_that_ends_with_the_block() -> None:
    async with closing_backend(MemoryBackend()) as backend:
        owned = await acquire_workspace(backend, "talk", owner="me", wait=1.0, call=None)
        others = asyncio.all_tasks()
        async with owned.hold():
            await asyncio.sleep(0)
            assert len(asyncio.all_tasks() - others) == 1
        assert asyncio.all_tasks() == others
