"""Agents and values in saved runs of openai-agents: tool keys, decisions, guardrail results, usage, contexts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from standfast.agents.approvals import ApprovalDecision, RecordedDecision
from standfast.agents.errors import AgentMissing
from standfast.agents.graph import ROOT, AgentGraph
from standfast.agents.handoffs import Handoff
from standfast.agents.tool_identity import ToolRef
from standfast.base.item_pairs import get_call_id
from standfast.runs.core.context import SavedContext
from standfast.runs.core.serialization import UnreadableState
from standfast.runs.core.state import GuardrailRecord, UsageRecord

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


def parse_tool_key(key: str) -> ToolRef:
    """Return the tool that a key of openai-agents' approvals names."""
    if key.startswith("deferred_top_level:"):
        return ToolRef("deferred_top_level", key.partition(":")[2])
    namespace, _, name = key.rpartition(".")
    return ToolRef("namespaced", name, namespace) if namespace else ToolRef("bare", key)


def iter_decisions(ref: ToolRef, decision: Mapping[str, Any], owner: str | None) -> Iterator[RecordedDecision]:
    """Yield the decisions about the calls of a tool. A list has the ids of calls; ``True`` stands for all of them."""
    messages = decision.get("rejection_messages") or {}
    for approved, found in ((True, decision.get("approved")), (False, decision.get("rejected"))):
        if isinstance(found, list):
            for call_id in found:
                yield RecordedDecision(ref, ApprovalDecision(approved, messages.get(call_id)), call_id)
        elif found is True:
            text = None if approved else decision.get("sticky_rejection_message")
            yield RecordedDecision(ref, ApprovalDecision(approved, text), owner=owner)


def read_guardrails(saved: Mapping[str, Any], agent: str, finder: AgentFinder) -> Iterator[GuardrailRecord]:
    """Yield the results of guardrails. Only those of outputs name their agent; the others get ``agent``."""
    for found in saved.get("input_guardrail_results") or ():
        name, output = found["guardrail"]["name"], found["output"]
        yield GuardrailRecord("input", name, agent, output["tripwireTriggered"], output.get("outputInfo"))
    for found in saved.get("output_guardrail_results") or ():
        name, output = found["guardrail"]["name"], found["output"]
        owner = finder.find(found.get("agent") or saved["current_agent"], default=agent)
        tripped, info = output["tripwireTriggered"], output.get("outputInfo")
        yield GuardrailRecord("output", name, owner, tripped, info, found.get("agentOutput"))
    for kind in ("tool_input", "tool_output"):
        for found in saved.get(f"{kind}_guardrail_results") or ():
            name, output = found["guardrail"]["name"], found["output"]
            behavior = output.get("behavior") or {"type": "allow"}
            tripped, info = behavior.get("type") == "raise_exception", output.get("outputInfo")
            yield GuardrailRecord(kind, name, agent, tripped, info, behavior=behavior)


def read_usage(usage: Mapping[str, Any]) -> UsageRecord:
    """Return the usage that openai-agents saved. Its details are lists of one entry in some places."""
    read, written = (_get_details(usage, name) for name in ("input_tokens_details", "output_tokens_details"))
    return UsageRecord(
        requests=usage.get("requests") or 0,
        input=usage.get("input_tokens") or 0,
        cached=read.get("cached_tokens") or 0,
        cache_write=read.get("cache_write_tokens") or 0,
        output=usage.get("output_tokens") or 0,
        reasoning=written.get("reasoning_tokens") or 0,
        total=usage.get("total_tokens") or 0,
        entries=tuple(map(read_usage, usage.get("request_usage_entries") or ())),
    )


def _get_details(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    details = usage.get(name) or {}
    first: Mapping[str, Any] = (details[0] if details else {}) if isinstance(details, list) else details
    return first


def read_trace(trace: Any) -> dict[str, Any] | None:
    """Return the trace without API keys."""
    return {name: value for name, value in trace.items() if "api_key" not in name} if trace else None


def read_context(saved: Mapping[str, Any]) -> SavedContext | None:
    """Return the program's context as a saved run has it here."""
    data, meta = saved.get("context"), saved.get("context_meta") or {}
    if data is None and not meta.get("omitted"):
        return None
    kind = str(meta.get("class_path") or "").replace(":", ".") or None
    if meta.get("omitted"):
        return SavedContext(type=kind, omitted=("context",))
    own = meta.get("serialized_via") == "context_serializer"
    return SavedContext(data, "serializer" if own else None, kind)
