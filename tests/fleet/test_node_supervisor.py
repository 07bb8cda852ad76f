"""The actor of a node, without Ray: calls that come late, twice, or from a pool that it has given up."""

import asyncio

import msgspec
import pytest

from factories.runtime import wait_for
from standfast.fleet._node import wire
from standfast.fleet._node.supervisor import NodeSupervisor
from standfast.fleet._node.wire import NodeReport, decode, decode_reply, encode, encode_config, restore_error
from standfast.workers import PoolConfig, SandboxPolicy, SessionConfig, WorkerDied

CONFIG = PoolConfig(
    session=SessionConfig(sandbox=SandboxPolicy(require="plain")), min_idle=0, max_sessions=2, drain_timeout=1.0
)


class Caller:
    """A pool's end of the node, in the same process."""

    def __init__(self, supervisor):
        self.supervisor = supervisor

    async def call(self, request_id, method, request, kind, *, session_id="", client="pool"):
        data = await self.supervisor.call(client, request_id, session_id, method, encode(request))
        reply = decode_reply(data)
        if reply.fault is not None:
            raise restore_error(reply.fault)
        return decode(reply.value, kind)

    async def control(self, method, request, *, client="pool"):
        reply = decode_reply(await self.supervisor.control(client, "", method, encode(request)))
        assert reply.fault is None, reply.fault
        return decode(reply.value, msgspec.Raw)

    async def lease(self, request_id="lease"):
        return await self.call(request_id, "lease", 60.0, wire.Leased)

    async def count_leased(self):
        return decode(await self.control("describe", None), NodeReport).leased


@pytest.fixture
async def node():
    supervisor = NodeSupervisor(encode_config(CONFIG), "node-1", True)
    caller = Caller(supervisor)
    await caller.call("heartbeat", "heartbeat", None, NodeReport)
    yield caller
    await caller.control("leave", None)
    supervisor._sweeper.cancel()
    await asyncio.wait([supervisor._sweeper])
    await supervisor._pool.close()


async def test_a_lease_that_was_cancelled_before_it_came_is_refused(node):
    await node.control("abort", "lease")
    with pytest.raises(Exception, match="cancelled"):
        await wait_for(node.lease(), 60)
    assert await node.count_leased() == 0


async def test_a_lease_whose_answer_nobody_waits_for_is_released(node):
    await node.lease("first")
    await node.lease("second")
    await node.control("abort", "first")
    assert await node.count_leased() == 1


async def test_a_lease_that_is_cancelled_at_any_moment_leaves_nothing_behind(node):
    """Cancellation comes in after each step that the lease of a new worker takes."""
    for steps in (0, 1, 2, 3, 5, 8, 13, 21, 34, None):
        leasing = asyncio.ensure_future(node.lease(f"lease-{steps}"))
        if steps is None:
            await asyncio.wait([leasing])
        for _ in range(steps or 0):
            await asyncio.sleep(0)
        await node.control("abort", f"lease-{steps}")
        await asyncio.gather(leasing, return_exceptions=True)
        assert await node.count_leased() == 0, steps


async def test_a_fork_whose_answer_nobody_waits_for_ends(node):
    leased = await node.lease()
    forked = await node.call("fork", "fork", wire.Named(), wire.Leased, session_id=leased.session_id)
    await node.control("abort", "fork")
    with pytest.raises(WorkerDied):
        await node.call("use", "heartbeat", wire.Named(), msgspec.Raw, session_id=forked.session_id)
    result = await node.call("run", "run", wire.Run("6 * 7"), msgspec.Raw, session_id=leased.session_id)
    assert msgspec.msgpack.decode(result)


async def test_a_session_that_the_node_has_given_up_is_lost_with_the_cause(node):
    """The pool was paused, or could not reach the node, for longer than the node waits."""
    leased = await node.lease()
    await node.control("leave", None)
    with pytest.raises(WorkerDied) as died:
        await node.call("run", "run", wire.Run("1"), msgspec.Raw, session_id=leased.session_id)
    assert died.value.cause.kind == "node-lost"
    assert await node.count_leased() == 0


async def test_a_session_is_released_once_whoever_releases_it(node):
    leased = await node.lease()
    await asyncio.gather(
        node.control("leave", None), node.control("release", leased.session_id), node.control("leave", None)
    )
    assert await node.count_leased() == 0


async def test_another_pool_cannot_use_a_session(node):
    leased = await node.lease()
    with pytest.raises(WorkerDied):
        await node.call("run", "run", wire.Run("1"), msgspec.Raw, session_id=leased.session_id, client="other")
    await node.control("release", leased.session_id, client="other")
    assert await node.count_leased() == 1
