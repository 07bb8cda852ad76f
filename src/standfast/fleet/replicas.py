"""Processes of ``standfast work`` and ``standfast serve`` on the nodes of a cluster, started and replaced by Ray."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from standfast.fleet import cluster

PREFIX = "replica-"
STOP_SECONDS = 20.0


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One process: its name, its node, and its command."""

    name: str
    node_id: str
    process: int
    command: tuple[str, ...]


class Replica:
    """Runs in an actor. It ends with its process, so that Ray starts another actor, on this node or on another."""

    def __init__(self, name: str, arguments: list[str], environment: dict[str, str]) -> None:
        self._name, self._arguments = name, arguments
        self._is_stopping = False
        command = [sys.executable, "-m", "standfast.fleet._node.bound_process", str(os.getpid()), *arguments]
        self._process = subprocess.Popen(command, env=os.environ | environment)  # noqa: S603
        threading.Thread(target=self._watch, name="standfast replica", daemon=True).start()

    def _watch(self) -> None:
        self._process.wait()
        if not self._is_stopping:
            os._exit(1)  # not an orderly exit, which Ray would not restart

    def describe(self) -> bytes:
        """Return an encoded :class:`ReplicaStatus`."""
        ray = cluster.import_ray()
        return msgspec.msgpack.encode(
            ReplicaStatus(
                name=self._name,
                node_id=ray.get_runtime_context().get_node_id(),
                process=self._process.pid,
                command=tuple(self._arguments),
            )
        )

    def stop(self) -> None:
        """End the process in order: it releases its runs for the others."""
        self._is_stopping = True
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()


def start_replicas(
    arguments: Sequence[str],
    *,
    count: int,
    name: str = "work",
    environment: Mapping[str, str] | None = None,
    resources: Mapping[str, float] | None = None,
) -> list[str]:
    """Start ``count`` processes of ``standfast`` with these arguments, spread over the nodes; return their names.

    ``environment`` is added to that of their nodes. Those that run already under this name stay. Ray replaces one that
    ends, and those of a node that is lost.
    """
    ray = cluster.import_ray()
    names = [f"{PREFIX}{name}-{number}" for number in range(count)]
    options: dict[str, Any] = {"num_cpus": 0, **(resources or {})}
    for one in names:
        ray.remote(Replica).options(
            name=one,
            namespace=cluster.NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            scheduling_strategy="SPREAD",
            **options,
        ).remote(one, list(arguments), dict(environment or {}))
    return names


def list_replicas() -> list[ReplicaStatus]:
    """Return the processes that answer."""
    ray = cluster.import_ray()
    answers = [actor.describe.remote() for _, actor in _find_replicas()]
    found = []
    for answer in answers:
        try:
            found.append(msgspec.msgpack.decode(ray.get(answer, timeout=5.0), type=ReplicaStatus))
        except ray.exceptions.RayError:  # it is being replaced
            continue
    return found


def stop_replicas(name: str | None = None) -> int:
    """End the processes in order, and return their number."""
    ray = cluster.import_ray()
    stopping = _find_replicas(name)
    for _, actor in stopping:
        with suppress(ray.exceptions.RayError):
            ray.get(actor.stop.remote(), timeout=STOP_SECONDS + 5.0)
        ray.kill(actor, no_restart=True)
    return len(stopping)


def _find_replicas(name: str | None = None) -> list[tuple[str, Any]]:
    ray = cluster.import_ray()
    prefix = PREFIX if name is None else f"{PREFIX}{name}-"
    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if one["name"].startswith(prefix)]
    found = []
    for one in sorted(names):
        try:
            found.append((one, ray.get_actor(one, namespace=cluster.NAMESPACE)))
        except ValueError:
            continue
    return found
