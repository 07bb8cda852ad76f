"""A cluster for all tests of a file, and the driver of this process in it. Ray takes seconds to start a node."""

import asyncio
import os

import pytest
from bench.ray_nodes import HEAD, RayCluster

os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "STANDFAST_NODE_ADDRESS": HEAD})


@pytest.fixture(scope="module")
def cluster(request):
    started = RayCluster(getattr(request.module, "NODES", 1))
    try:
        yield started
    finally:
        import ray

        ray.shutdown()
        started.close()


@pytest.fixture(scope="module")
def joined(cluster):
    """The driver of this process: it uses the loopback address of the head."""
    import ray

    ray.init(
        address=cluster.address, namespace="standfast", _node_ip_address=HEAD, log_to_driver=False,
        configure_logging=False,
    )  # fmt: skip
    return cluster


@pytest.fixture
async def make_pool(joined):
    """Start pools that have as many nodes as the cluster, and close them."""
    from standfast.fleet import RayPool

    pools = []

    async def make(config, *, nodes=None, **options):
        pool = RayPool(config, address=joined.address, **options)
        pools.append(pool)
        await pool.start()
        async with asyncio.timeout(240):
            while len(pool.list_reports()) < (len(joined.nodes) + 1 if nodes is None else nodes):
                await asyncio.sleep(0.1)
                joined.restart_ended()
                await pool.refresh()
        return pool

    yield make
    for pool in pools:
        await pool.close()
