"""Nodes, and the whole cluster, that are lost while conversations and durable runs use them."""

import asyncio

import pytest
from bench.ray_nodes import RayCluster

from factories.fleet import LEAKS, NEEDS_RAY
from factories.runtime import wait_for
from standfast import Agent, FunctionModel, Runtime, python_tool
from standfast.fleet import RayPool, read_status
from standfast.workers import (
    ErrorMessage,
    ExecuteMessage,
    OutputMessage,
    PoolConfig,
    PythonSessions,
    SandboxPolicy,
    SessionConfig,
    WorkerDied,
)

NODES = 0
LABELS = {"standfast-pool": "workers"}
CONFIG = PoolConfig(
    session=SessionConfig(sandbox=SandboxPolicy(require="namespaces")), min_idle=0, max_sessions=4, drain_timeout=1.0
)
pytestmark = [NEEDS_RAY, LEAKS]


@pytest.fixture
async def nodes(cluster, make_pool):
    """A pool over two nodes that may be killed; the driver is on the head."""
    started = [cluster.add_node(labels=LABELS) for _ in range(2)]
    pool = await make_pool(CONFIG, nodes=2, labels=LABELS)
    yield pool
    for node in started:
        if node in cluster.nodes:
            cluster.kill_node(node)


def find_node(cluster, pool, session):
    """Return the node on which a session is."""
    address = session.link.node.address
    return next(node for node in cluster.nodes if node.address == address)


async def test_every_waiting_call_ends_with_the_cause_when_its_node_is_lost(cluster, nodes):
    pool = nodes
    async with pool.acquire(60) as session:
        await session.run("kept = 1")
        running = asyncio.create_task(session.run("import time; time.sleep(600)"))
        stream = session.execute(ExecuteMessage(code="print('never')"))
        snapshot = asyncio.create_task(session.snapshot())
        await session.heartbeat()
        await asyncio.to_thread(cluster.kill_node, find_node(cluster, pool, session))
        result = await wait_for(running, 120)
        assert (result.state, result.error.cause) == ("lost", "node-lost")
        assert result.reason.startswith("node-lost: node ")
        [last] = [message async for message in stream]
        assert isinstance(last, ErrorMessage)
        assert (last.state, last.cause) == ("lost", "node-lost")
        with pytest.raises(WorkerDied) as died:
            await wait_for(snapshot, 120)
        assert died.value.cause.kind == "node-lost"
        assert not session.is_alive
        assert session.info.cause.kind == "node-lost"
    assert pool.metrics["nodes_lost"] == 1
    async with pool.acquire(60) as other:
        assert (await other.run("'kept' in dir()")).value is False


async def test_a_stream_that_has_begun_ends_with_the_cause(cluster, nodes):
    pool = nodes
    async with pool.acquire(60) as session:
        messages = []
        async for message in session.execute(ExecuteMessage(code="import time; print('go'); time.sleep(600)")):
            messages.append(message)
            if isinstance(message, OutputMessage):
                await asyncio.to_thread(cluster.kill_node, find_node(cluster, pool, session))
        assert (messages[-1].state, messages[-1].cause) == ("lost", "node-lost")


CELLS = [
    "rows = [1, 2, 3]\n_ = open('rows.txt', 'w').write('kept')\nprint('made')",
    "rows.append(4)\nprint(len(rows))",
    "print(sum(rows), open('rows.txt').read())",
]


async def test_a_durable_run_goes_on_by_itself_on_another_node(cluster, nodes, tmp_path):
    pool, requests, killed = nodes, [], []

    def decide(request):
        outputs = [item["output"] for item in request.input if item.get("type") == "function_call_output"]
        requests.append(outputs)
        done = [output for output in outputs if "session was lost" not in output]  # such a cell is to be repeated
        if len(done) == 2 and not killed:  # two cells are done, and the third has not begun
            [(_, info)] = pool.list_sessions()
            address = next(
                link.node.address for link in pool._links.values() if link.node.node_id == info.metadata["node"]
            )
            killed.append(next(node for node in cluster.nodes if node.address == address))
            cluster.kill_node(killed[0])
        return FunctionModel.call("run_python", code=CELLS[len(done)]) if len(done) < len(CELLS) else "done"

    agent = Agent("analyst", tools=[python_tool(pool)], model=FunctionModel(decide))
    async with Runtime.open(f"sqlite:///{tmp_path}/app.db", agents=[agent]) as runtime:
        run = await runtime.start("analyst", "Add up.", session_id="ann")
        assert (await wait_for(run.wait(), 240)).final_output == "done"
        assert killed
        events = [event async for event in run.events()]
        assert "workspace.restored" in [event.type for event in events]
        *_, last = requests[-1]
        assert last.splitlines()[-1] == "10 kept"
        assert "restored" in last or "lost" in last  # the model is told
        versions = [one.version async for one in (await runtime.workspace("ann")).history()]
        assert versions[:3] == [1, 2, 3]
        async with asyncio.timeout(120):  # until the head has noticed
            status = await read_status(runtime)
            while all(node.is_alive for node in status.nodes):
                status = await read_status(runtime)
        assert sum(node.conversations for node in status.nodes) == 1


async def test_a_call_under_way_is_made_again_from_the_state_before_it(cluster, nodes, tmp_path):
    """The cell acts on its workspace alone, so that nothing is done twice."""
    from standfast import open_store

    pool = nodes
    async with open_store(f"sqlite:///{tmp_path}/app.db") as store:
        sessions = PythonSessions(pool, store=store)
        await sessions.run("count = 1", key="ann")
        await sessions.save("ann")
        running = asyncio.create_task(sessions.run("count += 1\nimport time; time.sleep(600)", key="ann", timeout=600))
        while not (leased := pool.list_sessions()) or leased[0][1].state != "busy":
            await pool.check_health()
            for session in list(pool._sessions.values()):
                await session.refresh()
        [session] = pool._sessions.values()
        await asyncio.to_thread(cluster.kill_node, find_node(cluster, pool, session))
        lost = await wait_for(running, 120)
        assert lost.result.state == "lost"
        assert "those from before this call" in lost.as_text()
        again = await wait_for(sessions.run("count += 1\nprint(count)", key="ann"), 120)
        assert again.result.stdout == "2\n"
        assert "restored" in again.as_text()
        sessions.close()


async def test_resources_of_ray_say_which_nodes_are_used_and_how_many_workers_they_have(cluster, make_pool):
    labels, resources = {"standfast-pool": "sized"}, {"standfast_workers": 2, "special": 1}
    nodes = [cluster.add_node(labels=labels, resources=resources), cluster.add_node(labels=labels)]
    pool = await make_pool(CONFIG, nodes=1, labels=labels, resources={"special": 1})
    try:
        sessions = [await pool.lease(120) for _ in range(2)]
        assert {session.link.node.address for session in sessions} == {nodes[0].address}
        assert pool.is_full
        assert [node["capacity"] for node in pool.info()["nodes"].values()] == [2]
        async with asyncio.timeout(240):
            while not pool.info()["unusable"]:
                cluster.restart_ended()
                await pool.refresh()
        [reason] = pool.info()["unusable"].values()
        assert "not schedulable" in reason
        assert pool.metrics["nodes_lost"] == 0
        assert (await sessions[0].run("6 * 7")).value == 42
    finally:
        for node in nodes:
            cluster.kill_node(node)


WITHOUT_NAMESPACES = [
    "unshare", "--user", "--map-root-user", "sh", "-c",
    'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all "$@"', "sh",
]  # fmt: skip


async def test_a_node_without_the_sandbox_that_is_required_is_not_used_and_told_with_the_reason(cluster, make_pool):
    labels = {"standfast-pool": "mixed"}
    nodes = [cluster.add_node(labels=labels), cluster.add_node(labels=labels, prefix=WITHOUT_NAMESPACES)]
    pool = await make_pool(CONFIG, nodes=2, labels=labels)
    try:
        sessions = [await pool.lease(120) for _ in range(3)]
        assert {session.link.node.address for session in sessions} == {nodes[0].address}
        assert {session.info.metadata["sandbox"] for session in sessions} == {"namespaces"}
        [(_, reason)] = pool.info()["unusable"].items()
        assert "namespaces" in reason
    finally:
        for node in nodes:
            cluster.kill_node(node)


async def test_callers_wait_for_a_cluster_that_is_lost_and_go_on_with_the_next(tmp_path):
    """A cluster of its own, whose head ends, and which begins again at the same address."""
    import ray

    ray.shutdown()
    first = await asyncio.to_thread(RayCluster, 0)
    pool = RayPool(CONFIG, address=first.address)
    second = None
    try:
        await pool.start()
        async with asyncio.timeout(120):
            while not pool.list_reports():
                await pool.refresh()
        session = await pool.lease(60)
        assert (await session.run("1 + 1")).value == 2
        await asyncio.to_thread(first.close)
        result = await wait_for(session.run("2 + 2"), 120)
        assert (result.state, result.error.cause) == ("lost", "node-lost")
        async with asyncio.timeout(120):
            while not pool.info()["problem"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        assert "head of the Ray cluster is lost" in pool.info()["problem"]
        waiting = asyncio.create_task(pool.lease(60))  # the timeout begins when there is a cluster
        second = await asyncio.to_thread(RayCluster, 0, head_options={"port": first.head.port})
        leased = await wait_for(waiting, 240)
        assert (await leased.run("3 + 3")).value == 6
    finally:
        await pool.close()
        ray.shutdown()
        for cluster in (first, second):
            if cluster is not None:
                await asyncio.to_thread(cluster.close)
