"""A node that cannot be reached for a while, in a network namespace of its own."""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import partition_process
import pytest
from bench.ray_network import Network, can_make_networks
from bench.ray_nodes import RayCluster, make_environment

import standfast
from factories.fleet import NEEDS_RAY, SOON, is_running

SOURCE = Path(standfast.__file__).parent.parent
pytestmark = [
    NEEDS_RAY,
    pytest.mark.skipif(not can_make_networks(), reason="needs root, iproute2 and network namespaces"),
]


@pytest.fixture
def cluster():
    network = Network()
    started = RayCluster(0, network=network, head_options={"environment": SOON})
    for _ in range(2):
        started.add_node(labels=partition_process.LABELS, environment=SOON)
    yield started
    started.close()
    network.close()


@pytest.fixture
def program(cluster, tmp_path):
    """The program, on the machine of the head."""
    command = [*cluster.head.prefix, sys.executable, partition_process.__file__, f"sqlite:///{tmp_path}/app.db"]
    environment = make_environment() | {
        "PYTHONPATH": str(SOURCE),
        "STANDFAST_NODE_ADDRESS": cluster.head.address,
    }
    process = subprocess.Popen(
        [*command, cluster.address], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def list_descendants(pid):
    """Return the processes below one."""
    children = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def test_a_conversation_continues_elsewhere_while_its_node_is_cut_off_and_after_that(cluster, program):
    def read():
        while not (line := program.stdout.readline()).startswith("{"):  # Ray prints what it notices, too
            assert line, "the program has ended"
        return json.loads(line)

    while not select.select([program.stdout], [], [], 1)[0]:
        cluster.restart_ended()
    address = read()["node"]
    node = next(one for one in cluster.nodes if one.address == address)
    processes = list_descendants(node.process.pid)
    cluster.network.cut(cluster.hosts[node])
    lost = read()
    assert (lost["state"], lost["cause"]) == ("lost", "node-lost")
    assert "those from before this call" in lost["text"]
    again = read()
    assert again["stdout"] == "2\n"
    assert "restored" in again["text"], "the model is told"
    assert again["node"] != address
    assert os.path.exists(f"/proc/{node.process.pid}")
    cluster.network.join(cluster.hosts[node])
    deadline = time.monotonic() + 120
    while left := [pid for pid in processes if is_running(pid)]:  # the node learns that it was given up
        assert time.monotonic() < deadline, f"{len(left)} processes of a lost node go on"
        time.sleep(0.1)
    program.stdin.write("\n")
    program.stdin.flush()
    last = read()
    assert (last["stdout"], last["lost"]) == ("3\n", 1)
