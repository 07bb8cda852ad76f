"""One picture of a fleet: nodes and their workers, runtimes, and the queues in which runs wait."""

import asyncio
from typing import Any

import msgspec

from standfast.base.errors import MissingExtra
from standfast.fleet import cluster
from standfast.fleet._node.wire import NodeReport, decode, decode_reply, encode
from standfast.runtime.runtime import Runtime
from standfast.runtime.types import QueueInfo, RuntimeInfo

_ANSWER_SECONDS = 5.0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node of the Ray cluster. ``conversations`` have a worker there, of which there may be ``capacity``."""

    node_id: str
    """Ray's id of the node."""
    address: str
    """The address of the node."""
    is_alive: bool
    """Whether Ray says that the node is alive."""
    labels: dict[str, str] = {}
    """Ray's labels of the node."""
    capacity: int = 0
    """How many conversations may have a worker there."""
    conversations: int = 0
    """How many conversations have a worker there."""
    idle: int = 0
    """How many workers are ready for a conversation."""
    waiting: int = 0
    """How many callers wait for a worker."""
    memory: int = 0
    """Bytes of memory that the workers use."""
    sandbox: str | None = None
    """The sandbox level of the workers."""
    is_draining: bool = False
    """Whether the node takes no new conversations."""
    problem: str = ""
    """Why the node cannot be used, or empty."""


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet at one moment. ``problem`` says why the nodes are not known."""

    queues: tuple[QueueInfo, ...] = ()
    runtimes: tuple[RuntimeInfo, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    problem: str = ""

    @property
    def queued(self) -> int:
        """How many runs wait for a runtime."""
        return sum(queue.ready for queue in self.queues)

    @property
    def oldest_wait(self) -> float:
        """Seconds for which the oldest of them has waited."""
        return max((queue.oldest_wait for queue in self.queues if queue.ready), default=0.0)


async def read_status(runtime: Runtime, *, address: str | None = None, nodes: bool = True) -> FleetStatus:
    """Return the picture of a fleet: its queues and runtimes from the store, its nodes from the Ray cluster."""
    queues, runtimes = await runtime.queues(), await runtime.runtimes()
    if not nodes:
        return FleetStatus(queues=tuple(queues), runtimes=tuple(runtimes))
    try:
        found, problem = await asyncio.to_thread(read_nodes, address), ""
    except (cluster.ClusterUnavailable, MissingExtra) as error:
        found, problem = (), str(error)
    return FleetStatus(queues=tuple(queues), runtimes=tuple(runtimes), nodes=found, problem=problem)


def read_nodes(address: str | None) -> tuple[NodeStatus, ...]:
    """Ask Ray for its nodes, and the actor of each for its workers. It blocks."""
    cluster.join(address)
    ray: Any = cluster.import_ray()
    reports: dict[str, list[NodeReport]] = {}
    asked = [
        (node_id, actor.control.options(concurrency_group="control").remote("", "", "describe", encode(None)))
        for node_id, actor in cluster.list_supervisors()
    ]
    for node_id, answer in asked:
        try:
            reply = decode_reply(ray.get(answer, timeout=_ANSWER_SECONDS))
        except ray.exceptions.RayError:
            continue
        if reply.fault is None:
            reports.setdefault(node_id, []).append(decode(reply.value, NodeReport))
    return tuple(_describe(node, reports.get(node.node_id, [])) for node in cluster.list_nodes())


def _describe(node: cluster.ClusterNode, reports: list[NodeReport]) -> NodeStatus:
    return NodeStatus(
        node_id=node.node_id,
        address=node.address,
        is_alive=node.is_alive,
        labels=dict(node.labels),
        capacity=sum(report.capacity for report in reports),
        conversations=sum(report.leased for report in reports),
        idle=sum(report.idle for report in reports),
        waiting=sum(report.waiting for report in reports),
        memory=sum(report.memory for report in reports),
        sandbox=next((report.sandbox for report in reports if report.sandbox), None),
        is_draining=any(report.draining for report in reports),
        problem="; ".join(report.problem for report in reports if report.problem),
    )
