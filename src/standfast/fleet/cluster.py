"""The Ray cluster: joining it, its nodes, and the actor on each. Nothing else imports Ray."""

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from standfast.base.errors import MissingExtra, StoreUnavailable
from standfast.base.log import get_logger
from standfast.fleet._node.supervisor import NodeSupervisor

NAMESPACE = "standfast"
WORKERS_RESOURCE = "standfast_workers"
"""A node started with this resource has as many workers at most."""
NODE_ADDRESS_VARIABLE = "STANDFAST_NODE_ADDRESS"
"""The address of this machine in the cluster, if Ray would choose another one."""
_RECONNECT_SECONDS = 24 * 3600
_CONNECT_SECONDS = 3.0
_CONTROL_CALLS = 256
_DATA_CALLS = 10_000
_log = get_logger(__name__)


class ClusterUnavailable(StoreUnavailable):
    """The Ray cluster, or every node of it, cannot be reached at the moment. Try again later."""

    code = "cluster-unavailable"


@dataclass(frozen=True)
class ClusterNode:
    """A node as Ray describes it."""

    node_id: str
    address: str
    is_alive: bool
    labels: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)


def import_ray() -> Any:
    """Return the module ``ray``, or raise :class:`MissingExtra`."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("fleet", "a fleet of workers on Ray") from None
    return ray


def join(address: str | None) -> None:
    """Join the cluster at ``address``, unless this process has joined one."""
    # Otherwise Ray ends a process whose head has been away for a minute.
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_RECONNECT_SECONDS))
    ray = import_ray()
    if not ray.is_initialized():
        if address is not None and ":" in address and "://" not in address:
            _check_connection(address)  # Ray would try for minutes
        try:
            ray.init(
                address=address or "auto",
                namespace=NAMESPACE,
                log_to_driver=False,
                configure_logging=False,
                _node_ip_address=os.environ.get(NODE_ADDRESS_VARIABLE) or None,
            )
        except (ConnectionError, RuntimeError, ValueError) as problem:
            raise ClusterUnavailable(f"the Ray cluster at {address or 'auto'} cannot be joined: {problem}") from None


def leave() -> None:
    """Leave the cluster."""
    ray = import_ray()
    if ray.is_initialized():
        ray.shutdown()


def check_head() -> None:
    """Raise :class:`ClusterUnavailable` unless the head accepts connections."""
    _check_connection(import_ray().get_runtime_context().gcs_address)


def _check_connection(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as problem:
        raise ClusterUnavailable(f"{address} accepts no connection: {problem}") from None


def list_nodes() -> list[ClusterNode]:
    """Return all nodes that Ray knows, also those that are gone."""
    check_head()
    ray = import_ray()
    return [
        ClusterNode(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            is_alive=bool(node["Alive"]),
            labels=node.get("Labels") or {},
            resources=node.get("Resources") or {},
        )
        for node in ray.nodes()
    ]


class NodeDirectory:
    """Runs in an actor, one in the cluster, and lists its nodes.

    The library of Ray ends its process if a question to a head that was lost is answered by the next one at the same
    address. That may happen to this actor, which Ray starts again, but not to a program.
    """

    def list_nodes(self) -> bytes:
        return msgspec.msgpack.encode(list_nodes())


def start_directory() -> Any:
    """Return the actor that lists the nodes, which is started unless it is there."""
    check_head()
    ray = import_ray()
    return (
        ray.remote(NodeDirectory)
        .options(
            name="directory",
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=-1,
        )
        .remote()
    )


def decode_nodes(data: bytes) -> list[ClusterNode]:
    return msgspec.msgpack.decode(data, type=list[ClusterNode])


def name_actor(config: bytes, node_id: str) -> str:
    """Return the name of the actor: pools with the same configuration share the workers of a node."""
    return f"standfast-{hashlib.sha256(config).hexdigest()[:16]}-{node_id}"


def start_supervisor(config: bytes, node: ClusterNode, *, options: Mapping[str, Any], persistent: bool) -> Any:
    """Return the actor of a node, which is started unless it is there."""
    check_head()
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(concurrency_groups={"control": _CONTROL_CALLS})(NodeSupervisor)
    place = NodeAffinitySchedulingStrategy(node.node_id, soft=False)
    return remote.options(
        name=name_actor(config, node.node_id),
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        max_concurrency=_DATA_CALLS,
        scheduling_strategy=place,
        **options,
    ).remote(config, node.node_id, persistent)


def list_supervisors() -> list[tuple[str, Any]]:
    """Return the node ids and the actors of all pools in the cluster."""
    ray = import_ray()
    found = []
    for one in ray.util.list_named_actors(all_namespaces=True):
        if one["namespace"] == NAMESPACE and one["name"].startswith("standfast-"):
            try:
                found.append((one["name"].rpartition("-")[2], ray.get_actor(one["name"], namespace=NAMESPACE)))
            except ValueError:  # it has ended
                continue
    return found


def is_loss(problem: BaseException) -> bool:
    """Return whether an error of a call means that its node is gone or cannot be reached."""
    ray = import_ray()
    return isinstance(problem, ray.exceptions.RayError | ConnectionError)
