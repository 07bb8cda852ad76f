"""A Ray cluster of several nodes on this machine: each is a process group with an address of its own on loopback."""

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.ray_network import Network, NetworkHost

STORE_BYTES = 80_000_000
NETWORK = f"127.{os.getpid() // 200 % 250 + 1}.{os.getpid() % 200 + 1}"
"""The first numbers of the addresses of this process's nodes: clusters with the same ones get in each other's way."""
HEAD = f"{NETWORK}.2"
HEAD_PORT = 6379
"""That of a head with a network namespace of its own."""
STARTUP_SECONDS = 120.0
PORTS = 400
"""How many ports the workers of a node may use."""


def make_environment() -> dict[str, str]:
    """Return the environment of Ray's processes: no proxies, no usage statistics."""
    own = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return own | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_enable_metrics_collection": "0", "PYTHONDONTWRITEBYTECODE": ""}


def end_with_parent() -> None:
    """Have the node end in order if the process that has started it is killed."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class RayNode:
    """``ray start --block`` in a process group of its own. ``kill`` ends all of it at once, as a power cut would."""

    def __init__(
        self,
        *,
        address: str,
        head: str | None = None,
        port: int | None = None,
        labels: Mapping[str, str] | None = None,
        resources: Mapping[str, float] | None = None,
        prefix: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        self.address, self.prefix = address, tuple(prefix)
        self.port = find_port(address) if port is None and head is None else port
        role = [f"--address={head}"] if head else ["--head", f"--port={self.port}", "--include-dashboard=false"]
        options = [f"--node-ip-address={address}", "--num-cpus=2", f"--object-store-memory={STORE_BYTES}"]
        options += [f"--labels={','.join(f'{key}={value}' for key, value in (labels or {}).items())}"] if labels else []
        options += [f"--resources={json.dumps(dict(resources or {}))}"] if resources else []
        command = [*prefix, str(Path(sys.executable).with_name("ray")), "start", *role, *options]
        self._command = [*command, "--disable-usage-stats", "--block"]
        self._environment, self._log = make_environment() | dict(environment or {}), log
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with open(self._log or os.devnull, "ab") as output:
            return subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def restart_if_ended(self) -> bool:
        """Start the node again if it has ended by itself: on a busy machine, Ray's 30 seconds to start are too few."""
        if self.process.poll() is None:
            return False
        self.kill()
        self.process = self._start()
        return True

    @property
    def cluster_address(self) -> str:
        return f"{self.address}:{self.port}"

    def list_processes(self) -> list[int]:
        """Return all processes of the node: those of its session, however deep they are."""
        own = os.getsid(self.process.pid) if self.process.poll() is None else self.process.pid
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.getsid(int(entry.name)) == own:
                        found.append(int(entry.name))
                except (ProcessLookupError, PermissionError):
                    continue
        return found

    def signal(self, number: int) -> None:
        """Send a signal to every process of the node."""
        for pid in self.list_processes():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kill(self) -> None:
        while pids := [pid for pid in self.list_processes() if pid != self.process.pid]:
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class RayCluster:
    """A head and further nodes, each with an address of its own. Ray does not take 127.0.0.1 literally.

    The addresses are on loopback, or the hosts of a ``network``: then each node has a network namespace of its own.
    """

    def __init__(
        self,
        nodes: int = 1,
        *,
        head_options: Mapping[str, object] | None = None,
        network: "Network | None" = None,
        head_host: "NetworkHost | None" = None,
    ) -> None:
        self.log = Path(tempfile.mkdtemp(prefix="standfast-ray-")) / "nodes.log"
        self.network = network
        self.hosts: dict[RayNode, NetworkHost] = {}
        self.nodes: list[RayNode] = []
        self._next = 3
        if network is None:
            self.head = RayNode(address=HEAD, log=self.log, **(head_options or {}))  # type: ignore[arg-type]
        else:
            self.head = self._start_on(head_host or network.add_host(), port=HEAD_PORT, **(head_options or {}))
        wait_for_port(self.head.address, self.head.port or 0, self.head.prefix)
        for _ in range(nodes):
            self.add_node()

    def _start_on(self, host: "NetworkHost", **options: object) -> RayNode:
        node = RayNode(address=host.address, prefix=host.prefix, log=self.log, **options)  # type: ignore[arg-type]
        self.hosts[node] = host
        return node

    @property
    def address(self) -> str:
        return self.head.cluster_address

    def add_node(self, **options: object) -> RayNode:
        if self.network is not None:
            node = self._start_on(self.network.add_host(), head=self.address, **options)
        else:
            address = f"{NETWORK}.{self._next}"
            node = RayNode(address=address, head=self.address, log=self.log, **options)  # type: ignore[arg-type]
            self._next += 1
        self.nodes.append(node)
        return node

    def restart_ended(self) -> int:
        """Start the nodes again that have ended by themselves, and return their number."""
        return sum(node.restart_if_ended() for node in self.nodes)

    def kill_node(self, node: RayNode) -> None:
        self.nodes.remove(node)
        node.kill()

    def close(self) -> None:
        for node in [*self.nodes, self.head]:
            node.kill()


def find_port(address: str) -> int:
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def wait_for_port(address: str, port: int, prefix: Sequence[str] = ()) -> None:
    """Return when the port accepts a connection, as seen by commands with this prefix."""
    deadline = time.monotonic() + STARTUP_SECONDS
    if prefix:
        connect = f"import socket; socket.create_connection(({address!r}, {port}), timeout=1)"
        while subprocess.run([*prefix, sys.executable, "-c", connect], check=False, capture_output=True).returncode:
            if time.monotonic() > deadline:
                raise TimeoutError(f"nothing listens at {address}:{port}")
        return
    while True:
        try:
            socket.create_connection((address, port), timeout=1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
