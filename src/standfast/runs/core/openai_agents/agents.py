"""Find the agents of a run that openai-agents saved in the graph of this program's agents."""

from collections.abc import Mapping, Sequence
from typing import Any

from standfast.agents.errors import AgentMissing
from standfast.agents.graph import ROOT, AgentGraph
from standfast.agents.handoffs import Handoff
from standfast.base.item_pairs import get_call_id
from standfast.runs.core.serialization import UnreadableState

AgentReference = Mapping[str, Any]
"""``name``, and from schema 1.7 on ``identity``, which numbers agents of the same name."""


class AgentFinder:
    """Finds agents by following the handoffs of the run, because names are not unique.

    ``paths`` has the path of the agent of each item.
    """

    def __init__(self, graph: AgentGraph, items: Sequence[Mapping[str, Any]], start: str | None) -> None:
        self.graph = graph
        self._known: dict[str, str] = {}
        self._targets: dict[str | None, str] = {}
        self._handoff_names: dict[str | None, str] = {}
        self.current = ROOT if start is None else start
        self.paths = [self._follow(item) for item in items]

    def find(self, agent: AgentReference, *, default: str | None = None) -> str:
        """Return the path of an agent; raise an error if it does not exist or is not the only one of its name."""
        name = agent["name"]
        known = self._known.get(agent.get("identity") or name)
        if known is not None:
            return known
        paths = [path for path, candidate in self.graph if candidate.name == name]
        if len(paths) == 1:
            return paths[0]
        if default is not None:
            return default
        if not paths:
            raise AgentMissing("?", name)
        raise UnreadableState(
            f"openai-agents wrote it, and {len(paths)} agents are called {name!r}: the saved run does not say which of"
            " them it means. Give them different names before you save, or resume it with openai-agents",
            path="$.current_agent",
        )

    def find_current(self, agent: AgentReference) -> str:
        """Return the path of the agent that continues."""
        return self.current if self._is_named(self.current, agent) else self.find(agent)

    def find_target(self, item: Mapping[str, Any]) -> str | None:
        """Return the path of the agent that a handoff led to."""
        return self._targets.get(get_call_id(item["raw_item"]))

    def _follow(self, item: Mapping[str, Any]) -> str:
        agent = item["agent"]
        path = self.find_current(agent)
        self._known.setdefault(agent.get("identity") or agent["name"], path)
        call_id = get_call_id(item["raw_item"])
        if item["type"] == "handoff_call_item":
            self._handoff_names[call_id] = item["raw_item"].get("name", "")
        self.current = path
        if item["type"] == "handoff_output_item":
            target = self._find_handoff_target(path, self._handoff_names.get(call_id), item["target_agent"])
            self._targets[call_id] = self.current = target
            self._known.setdefault(item["target_agent"].get("identity") or item["target_agent"]["name"], target)
        return path

    def _find_handoff_target(self, source: str, tool_name: str | None, target: AgentReference) -> str:
        for handoff in getattr(self.graph.find(source), "handoffs", ()):
            agent = handoff.agent if isinstance(handoff, Handoff) else handoff
            name = handoff.tool_name if isinstance(handoff, Handoff) else Handoff.default_tool_name(handoff)
            if agent is not None and name == tool_name and agent.name == target["name"]:
                return self.graph.get_path(agent)
        return self.find(target)

    def _is_named(self, path: str, agent: AgentReference) -> bool:
        found = self.graph.find(path)
        identity = agent.get("identity") or agent["name"]
        if found is None or found.name != agent["name"]:
            return False
        return self._known.get(identity, path) == path
