"""Proxies between client and server that cut connections."""

import asyncio
import random

import pytest

from factories.proxy import CuttingProxy
from factories.server import open_server
from standfast.client import Client
from standfast.client.event_stream import MAX_FAILURES
from standfast.client.runs import RemoteRun
from standfast.server import Limits


@pytest.fixture
async def server(tmp_path):
    limits = Limits(heartbeat=0.005, requests_per_second=1e6)
    async with open_server(f"sqlite:///{tmp_path / 'app.db'}", limits=limits) as opened:
        yield opened


def is_quiet(seen):
    return seen.endswith((b": alive\n\n", b": alive\n\n\r\n"))


def get_port(server):
    return int(server.url.rpartition(":")[2])


async def test_a_reader_outlasts_any_number_of_cuts_while_nothing_happens(server):
    """As behind a proxy that cuts every connection after a minute, while a run waits for days."""
    async with (
        CuttingProxy(get_port(server), lambda: is_quiet).listen() as proxy,
        Client(proxy.url, token="ann") as ann,
    ):
        run = await ann.start("desk", "refund, please")
        [approval] = (await run.wait()).approvals
        before = proxy.cuts
        reading = asyncio.ensure_future(collect(run.events(until="end")))
        while proxy.cuts < before + MAX_FAILURES + 5:
            assert not reading.done(), reading.exception()
            await asyncio.sleep(0.01)
        async with Client(server.url, token="eve") as eve:
            await eve.decide(approval.id, "approve")
        events = await reading
    assert [event.seq for event in events if not event.live] == list(range(1, (await run_info(server, run)).steps + 1))
    assert events[-1].type == "run.completed"


async def collect(events):
    return [event async for event in events]


async def run_info(server, run):
    return await (await server.runtime.run(run.id)).info()


@pytest.mark.parametrize("seed", [0, 1, 3])
async def test_what_arrives_over_cut_connections_is_the_journal(server, seed):
    """Each connection is cut after some bytes, wherever that is in an event."""
    chance = random.Random(seed)

    def make_limit():
        limit = chance.randrange(200, 1500)
        return lambda seen: len(seen) > limit

    proxy = CuttingProxy(get_port(server), make_limit)
    async with proxy.listen(), Client(server.url, token="ann") as ann, Client(proxy.url, token="ann") as behind:
        for number in range(8):
            run = await ann.start("desk", f"hello {number}")
            events = await collect(RemoteRun(behind, run.id).events(until="end"))
            stored = [event.seq for event in events if not event.live]
            assert stored == list(range(1, (await run.info()).steps + 1))
    assert proxy.cuts > 5
