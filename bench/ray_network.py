"""Network namespaces for the nodes of a Ray cluster: hosts on one switch, each of which can be cut off from the others.

The processes that hold the namespaces end with this one, and the namespaces with them. Nothing is changed in the
namespace of this process, and no packet enters it.
"""

import os
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass

from bench.ray_nodes import end_with_parent

SUBNET = "10.77.0"


def can_make_networks() -> bool:
    """Return whether this process may create network namespaces."""
    tools = all(shutil.which(name) for name in ("ip", "unshare", "nsenter"))
    return tools and os.geteuid() == 0 and subprocess.run(["unshare", "--net", "true"], check=False).returncode == 0


@dataclass(frozen=True)
class NetworkHost:
    """A namespace with one address. ``prefix`` begins a command that runs in it."""

    address: str
    prefix: tuple[str, ...]
    port: str
    """The end of its cable at the switch."""


class Network:
    """A switch and its hosts."""

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[bytes]] = []
        self._hosts = 0
        self._switch = self._make_namespace()
        self._run(self._switch, "ip link add switch type bridge")
        self._run(self._switch, "ip link set switch up")

    def add_host(self) -> NetworkHost:
        holder = self._make_namespace()
        self._hosts += 1
        port, address = f"port{self._hosts}", f"{SUBNET}.{self._hosts}"
        self._run(self._switch, f"ip link add {port} type veth peer name net0 netns {holder}")
        self._run(self._switch, f"ip link set {port} master switch up")
        self._run(holder, f"ip addr add {address}/24 dev net0")
        self._run(holder, "ip link set lo up")
        self._run(holder, "ip link set net0 up")
        return NetworkHost(address, (*self._enter(holder),), port)

    def cut(self, host: NetworkHost) -> None:
        """Lose every packet from and to the host from now on. Its processes notice nothing but silence."""
        self._run(self._switch, f"ip link set {host.port} nomaster")

    def join(self, host: NetworkHost) -> None:
        self._run(self._switch, f"ip link set {host.port} master switch")

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.wait()

    def _make_namespace(self) -> int:
        own = os.readlink("/proc/self/ns/net")
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], preexec_fn=end_with_parent)
        self._holders.append(holder)
        while True:
            with suppress(OSError):
                if os.readlink(f"/proc/{holder.pid}/ns/net") != own:
                    return holder.pid
            time.sleep(0.01)

    def _run(self, holder: int, command: str) -> None:
        subprocess.run([*self._enter(holder), *command.split()], check=True, capture_output=True)

    @staticmethod
    def _enter(holder: int) -> list[str]:
        return ["nsenter", f"--net=/proc/{holder}/ns/net"]
