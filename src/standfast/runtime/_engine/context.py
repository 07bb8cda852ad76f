"""What all parts of one runtime share."""

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
from standfast.store.contract import ApprovalRecord, Backend, RunRecord


@dataclass(eq=False)
class RuntimeContext:
    """A store, the agents that this process knows, and its name among the other runtimes."""

    backend: Backend
    graphs: dict[str, AgentGraph]
    lease_renewer: LeaseRenewer
    config: RunConfig
    lease_ttl: float
    approval_ttl: float | None
    clock: Clock = time.time
    """The time of day as the store has it, as of the last time that it was set."""
    owner: str = field(default_factory=lambda: new_id("runtime"))
    subscriptions: RunSubscriptions = field(default_factory=RunSubscriptions)
    retry: RetryControl = field(default_factory=RetryControl)

    @property
    def closing(self) -> bool:
        """Nothing new is begun any more, and nobody waits for a database that is away."""
        return self.retry.stopped

    @property
    def poll_interval(self) -> float:
        """Seconds between two looks at what other runtimes have done."""
        return min(self.lease_ttl / 4, 1.0)

    async def sync_clock(self) -> None:
        """Tell the time by the store's clock, as its leases do: processes agree on it, whatever their own say."""
        before = time.monotonic()
        now = await self.backend.get_time()
        halfway = (before + time.monotonic()) / 2
        self.clock = lambda: now + time.monotonic() - halfway

    async def get_run(self, run_id: str) -> RunRecord:
        found = await self.backend.get_run(validate_name("run id", run_id))
        if found is None:
            raise NotFound("run", run_id)
        return found

    async def get_approval(self, approval_id: str) -> ApprovalRecord:
        found = await self.backend.get_approval(validate_name("approval id", approval_id))
        if found is None or found.run_id.startswith("session:"):
            raise NotFound("approval", approval_id)
        return found

    def get_graph(self, agent: str) -> AgentGraph:
        """The graph of the agent with that name."""
        if isinstance(agent, Agent):
            raise InvalidInput(f"runs find their agent by its name: give {agent.name!r}, not {agent!r}")
        found = self.graphs.get(agent)
        if found is None:
            has = ", ".join(map(repr, self.graphs)) or "none"
            raise NotFound("agent", agent, hint=f"; this runtime has {has}")
        return found

    def open_session(self, session_id: str) -> StoredSession:
        return StoredSession(session_id, self.backend)


def build_graphs(agents: Sequence[Agent[Any]]) -> dict[str, AgentGraph]:
    """The agents that runs can begin with, by name."""
    found: dict[str, AgentGraph] = {}
    for agent in agents:
        if not isinstance(agent, Agent):
            raise InvalidDeclaration("Runtime", f"agents must be Agent objects, not {type(agent).__name__}")
        if agent.name in found:
            raise InvalidInput(f"two agents are named {agent.name!r}: durable runs find theirs by its name")
        found[agent.name] = AgentGraph(agent)
    return found
