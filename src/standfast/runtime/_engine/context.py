"""The state that all parts of one runtime share."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from standfast.agents.agent import Agent
from standfast.agents.errors import InvalidDeclaration
from standfast.agents.graph import AgentGraph
from standfast.base.clock import Clock
from standfast.base.errors import InvalidInput, NotFound
from standfast.base.ids import new_id, validate_name
from standfast.history.stored_session import StoredSession
from standfast.runs.config import RunConfig
from standfast.runtime._engine.leases import LeaseRenewer
from standfast.runtime._engine.retrying_backend import RetryControl
from standfast.runtime._engine.subscriptions import RunSubscriptions
from standfast.store.backend import Backend
from standfast.store.records import ApprovalRecord, RunRecord


@dataclass(eq=False)
class RuntimeContext:
    """The backend, the agents of this process, settings, and the name of this runtime among the others."""

    backend: Backend
    graphs: dict[str, AgentGraph]
    lease_renewer: LeaseRenewer
    config: RunConfig
    lease_ttl: float
    approval_ttl: float | None
    clock: Clock = time.time
    """The store's time; corrected by :meth:`sync_clock`."""
    owner: str = field(default_factory=lambda: new_id("runtime"))
    subscriptions: RunSubscriptions = field(default_factory=RunSubscriptions)
    retry: RetryControl = field(default_factory=RetryControl)

    @property
    def closing(self) -> bool:
        """Whether the runtime is closing: nothing new is started, and no retry waits for an unavailable database."""
        return self.retry.stopped

    @property
    def poll_interval(self) -> float:
        """Seconds between two checks of what other runtimes have done."""
        return min(self.lease_ttl / 4, 1.0)

    async def sync_clock(self) -> None:
        """Set the clock to the store's time, which the leases use too: all processes agree on it."""
        before = time.monotonic()
        now = await self.backend.get_time()
        read_at = (before + time.monotonic()) / 2
        self.clock = lambda: now + time.monotonic() - read_at

    async def get_run(self, run_id: str) -> RunRecord:
        record = await self.backend.get_run(validate_name("run id", run_id))
        if record is None:
            raise NotFound("run", run_id)
        return record

    async def get_approval(self, approval_id: str) -> ApprovalRecord:
        record = await self.backend.get_approval(validate_name("approval id", approval_id))
        if record is None or record.run_id.startswith("session:"):  # a standing decision
            raise NotFound("approval", approval_id)
        return record

    def get_graph(self, agent: str) -> AgentGraph:
        """Return the graph of the agent with this name, or raise :class:`NotFound`."""
        if isinstance(agent, Agent):
            raise InvalidInput(f"pass the name of the agent, {agent.name!r}, not the Agent object")
        graph = self.graphs.get(agent)
        if graph is None:
            names = ", ".join(map(repr, self.graphs)) or "none"
            raise NotFound("agent", agent, hint=f"; this runtime has {names}")
        return graph

    def open_session(self, session_id: str) -> StoredSession:
        return StoredSession(session_id, self.backend)


def build_graphs(agents: Sequence[Agent[Any]]) -> dict[str, AgentGraph]:
    """Return the graphs of the agents that runs can start with, by name."""
    graphs: dict[str, AgentGraph] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidDeclaration("Runtime", f"agents must be Agent objects, not {type(agent).__name__}")
        if agent.name in graphs:
            raise InvalidInput(f"two agents are named {agent.name!r}: durable runs find their agent by its name")
        graphs[agent.name] = AgentGraph(agent)
    return graphs
