"""The graph of agents that a run can reach, and references to agents that can be saved.

A saved run cannot hold live objects, and the name of an agent does not identify it. A reference therefore consists
of the path from the agent that the run started with, and a signature of the agent's parts.
:meth:`AgentGraph.resolve` finds the agent in the graph of another process, or raises an error that says why not.
"""

import hashlib
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from standfast.agents.agent import AgentBase
from standfast.agents.errors import AgentChanged, AgentMissing
from standfast.agents.handoffs import Handoff
from standfast.agents.output import as_output_schema
from standfast.agents.tool_identity import ToolRef
from standfast.agents.tools import FunctionTool

ROOT = "root"
SIGNATURE_PARTS = ("name", "instructions", "tools", "handoffs", "output type")


class AgentRef(msgspec.Struct, frozen=True):
    """A reference to an agent in a saved run. The signature has a digest for each of :data:`SIGNATURE_PARTS`."""

    path: str
    name: str
    signature: str


class AgentGraph:
    """The agents reachable from ``root`` by handoffs and agent tools.

    A snapshot: agents can be changed at any time, so create one graph for each run. Construction takes time linear
    in the size of the graph; signatures are computed on first use.
    """

    def __init__(self, root: AgentBase[Any]) -> None:
        self.root = root
        self._paths: dict[int, str] = {id(root): ROOT}
        self._agents: dict[str, AgentBase[Any]] = {ROOT: root}
        self._signatures: dict[str, str] = {}
        queue = deque([root])
        while queue:
            agent = queue.popleft()
            for label, target in _iter_edges(agent):
                if id(target) not in self._paths:
                    path = f"{self._paths[id(agent)]}/{label}"
                    self._paths[id(target)], self._agents[path] = path, target
                    queue.append(target)

    def __iter__(self) -> Iterator[tuple[str, AgentBase[Any]]]:
        """Iterate over all agents with their paths, nearest first."""
        return iter(self._agents.items())

    def __len__(self) -> int:
        return len(self._agents)

    def find(self, path: str) -> Any:
        """Return the agent at a path without comparing signatures; ``None`` if the path does not exist."""
        return self._agents.get(path)

    def get_path(self, agent: AgentBase[Any]) -> str:
        """Return the shortest path to the agent; raise :class:`AgentMissing` if it is not reachable."""
        try:
            return self._paths[id(agent)]
        except KeyError:
            raise AgentMissing("?", agent.name) from None

    def get_ref(self, agent: AgentBase[Any]) -> AgentRef:
        """Return the reference to save for an agent of this graph."""
        path = self.get_path(agent)
        return AgentRef(path, agent.name, self._get_signature(path))

    def resolve(self, ref: AgentRef, *, tolerate: Collection[str] = ()) -> Any:
        """Return the agent that ``ref`` refers to, if it exists and has not changed.

        Raises :class:`AgentMissing` or :class:`AgentChanged` otherwise; another agent of the same name is never
        returned. Changes in the parts listed in ``tolerate`` are ignored.
        """
        agent = self._agents.get(ref.path)
        if agent is None:
            raise AgentMissing(ref.path, ref.name, other_paths=self._find_other_paths(ref))
        changed = [
            part for part in diff_signatures(ref.signature, self._get_signature(ref.path)) if part not in tolerate
        ]
        if changed:
            raise AgentChanged(ref.path, ref.name, changed_parts=changed)
        return agent

    def _get_signature(self, path: str) -> str:
        if path not in self._signatures:
            self._signatures[path] = compute_signature(self._agents[path])
        return self._signatures[path]

    def _find_other_paths(self, ref: AgentRef) -> list[str]:
        named = (path for path, agent in self if agent.name == ref.name)
        return [path for path in named if self._get_signature(path) == ref.signature]


def resolve_agent(root: AgentBase[Any], ref: AgentRef, *, tolerate: Collection[str] = ()) -> Any:
    """Resolve a single reference; see :meth:`AgentGraph.resolve`."""
    return AgentGraph(root).resolve(ref, tolerate=tolerate)


def compute_signature(agent: AgentBase[Any]) -> str:
    """Return digests of the agent's parts. Hooks, model and model settings are not part of the signature."""
    instructions = getattr(agent, "instructions", None)
    parts: list[Any] = [
        agent.name,
        "(a function)" if callable(instructions) else instructions,
        sorted(_describe_tools(agent), key=msgspec.json.encode),
        sorted(_describe_handoffs(agent)),
        _describe_output_type(getattr(agent, "output_type", None)),
    ]
    return ".".join(_compute_digest(part) for part in parts)


def diff_signatures(old: str, new: str) -> list[str]:
    """Return the parts in which two signatures differ."""
    pairs = list(zip(old.split("."), new.split("."), strict=False))
    if len(pairs) != len(SIGNATURE_PARTS) or old.count(".") != new.count("."):
        return [] if old == new else ["signature"]
    return [part for part, (before, after) in zip(SIGNATURE_PARTS, pairs, strict=True) if before != after]


def _iter_edges(agent: AgentBase[Any]) -> Iterator[tuple[str, AgentBase[Any]]]:
    """Yield the agents one step away, each with a label that is unique among the edges of this agent."""
    seen: dict[str, int] = {}
    for kind, name, target in _iter_neighbors(agent):
        label = f"{kind}:{_escape(name)}"
        seen[label] = seen.get(label, 0) + 1
        yield label if seen[label] == 1 else f"{label}~{seen[label]}", target


def _iter_neighbors(agent: AgentBase[Any]) -> Iterator[tuple[str, str, AgentBase[Any]]]:
    for target in getattr(agent, "handoffs", ()):
        neighbor = target.agent if isinstance(target, Handoff) else target
        if isinstance(neighbor, AgentBase):
            yield "handoff", neighbor.name, neighbor
    for tool in agent.tools:
        if isinstance(tool, FunctionTool) and tool.agent_tool is not None:
            yield "tool", str(ToolRef.from_tool(tool)), tool.agent_tool.agent


def _escape(name: str) -> str:
    return name.replace("%", "%25").replace("/", "%2F").replace("~", "%7E")


def _describe_tools(agent: AgentBase[Any]) -> Iterator[list[Any]]:
    for tool in agent.tools:
        if isinstance(tool, FunctionTool):
            yield ["function", *ToolRef.from_tool(tool).lookup_key, _compute_digest(tool.params_json_schema)]
        else:
            yield ["hosted", getattr(tool, "name", type(tool).__name__), _get_server_label(tool)]
    for server in agent.mcp_servers:
        yield ["mcp", server.name]


def _get_server_label(tool: Any) -> str:
    config = getattr(tool, "tool_config", None)
    return str(config.get("server_label", "")) if isinstance(config, dict) else ""


def _describe_handoffs(agent: AgentBase[Any]) -> Iterator[list[str]]:
    for target in getattr(agent, "handoffs", ()):
        if isinstance(target, Handoff):
            yield [target.tool_name, target.agent_name]
        else:
            yield [Handoff.default_tool_name(target), target.name]


def _describe_output_type(output_type: Any) -> Any:
    schema = as_output_schema(output_type)
    return None if schema is None or schema.is_plain_text() else [schema.name(), schema.json_schema()]


def _compute_digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted", enc_hook=repr)).hexdigest()[:16]
