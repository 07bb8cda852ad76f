"""Values in the saved runs of openai-agents: tool keys, decisions, guardrail results, usage, traces and contexts."""

from collections.abc import Iterator, Mapping
from typing import Any

from standfast.agents.approvals import ApprovalDecision, RecordedDecision
from standfast.agents.tool_identity import ToolRef
from standfast.runs.core.context import SavedContext
from standfast.runs.core.openai_agents.agents import AgentFinder
from standfast.runs.core.state import GuardrailRecord, UsageRecord


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
