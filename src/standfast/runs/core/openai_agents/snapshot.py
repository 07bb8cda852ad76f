"""Write a paused run so that openai-agents can resume it.

Schema 1.12 is written, which openai-agents reads from version 0.18.1 on: it can represent everything that is written
here, and later schemas add seals over data that only openai-agents has.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from standfast.agents.approvals import RecordedDecision
from standfast.agents.errors import UserError
from standfast.agents.graph import AgentGraph
from standfast.agents.tool_identity import ToolRef, index_tools_by_ref, match_tool
from standfast.base.items import Item
from standfast.runs.core.context import SavedContext
from standfast.runs.core.openai_agents.saved_run import KINDS
from standfast.runs.core.state import (
    CallRecord,
    GuardrailRecord,
    ServerConversation,
    State,
    TranscriptEntry,
    UsageRecord,
)

SCHEMA = "1.12"
_ITEM_TYPES = {kind: name for name, kind in KINDS.items()}
_NO_ACTIONS = (
    "computer_actions",
    "custom_tool_actions",
    "local_shell_actions",
    "apply_patch_actions",
    "handoffs",
)


class NotRepresentable(UserError):
    """The run has something that the format of openai-agents cannot hold. Nothing was written."""

    code = "not-representable"

    def __init__(self, what: str) -> None:
        super().__init__(f"openai-agents cannot resume this run: {what}")
        self.what = what


def write_openai_agents_run(
    state: State, graph: AgentGraph, context: SavedContext | None, history: Sequence[Item]
) -> dict[str, Any]:
    """Return the run in the format of openai-agents. ``history`` is what its session had before it."""
    names = Counter(agent.name for _, agent in graph)
    if twins := [name for name, count in names.items() if count > 1]:
        raise NotRepresentable(f"several agents are called {twins[0]!r}")
    return _Writer(state, graph, list(history)).write(context)


class _Writer:
    def __init__(self, state: State, graph: AgentGraph, history: list[Item]) -> None:
        self.state, self.graph, self.history = state, graph, history
        self._check()
        self.given = sum(entry.kind == "given" for entry in state.transcript)

    def _check(self) -> None:
        state = self.state
        if state.pending_input:
            raise NotRepresentable("it has input that was added and not yet taken")
        if state.answer is not None and not state.answer.accepted:
            raise NotRepresentable("its final output has not been checked yet: resume it here")
        waiting = any(call.status == "waiting" for call in state.calls)
        for call in state.calls:
            if call.uncertain or call.status not in ("waiting", "done") or call.kind == "handoff" or not waiting:
                raise NotRepresentable(
                    f"the call {call.id!r} of {call.tool} is {'uncertain' if call.uncertain else call.status}: only"
                    " calls that are done or wait for approval can be written"
                )
            if call.arguments is not None:
                raise NotRepresentable(f"the arguments of the call {call.id!r} were edited")
        if any(record.decision.arguments is not None for record in state.approvals):
            raise NotRepresentable("the arguments of an approved call were edited")

    def write(self, context: SavedContext | None) -> dict[str, Any]:
        state, server = self.state, self.state.conversation
        chained = server if isinstance(server, ServerConversation) else ServerConversation()
        items = self._write_items(self.given)
        responses = [self._write_response(at) for at in range(len(state.responses))]
        interruptions = list(self._iter_interruptions())
        original, shown = self._split_input()
        return {
            "$schemaVersion": SCHEMA,
            "current_turn": state.turn,
            "current_agent": self._write_agent(state.agent),
            "original_input": original,
            "model_responses": responses,
            "context": {
                "usage": write_usage(state.usage),
                "approvals": write_decisions(iter_all_decisions(state)),
                **write_context(context),
                **({"tool_input": state.tool_input} if state.tool_input is not None else {}),
            },
            "tool_use_tracker": {self._find_agent(path).name: list(used) for path, used in state.tools_used.items()},
            "max_turns": state.max_turns,
            "no_active_agent_run": True,
            **self._write_guardrails(),
            "conversation_id": chained.conversation_id,
            "previous_response_id": chained.previous_response_id,
            "auto_previous_response_id": chained.auto,
            "generated_prompt_cache_key": None,
            "reasoning_item_id_policy": state.reasoning_item_id_policy,
            "generated_items": shown,
            "session_items": items,
            "current_step": {"type": "next_step_interruption", "data": {"interruptions": interruptions}}
            if interruptions
            else None,
            "last_model_response": responses[-1] if interruptions else None,
            "last_processed_response": self._write_processed_response(interruptions) if interruptions else None,
            "current_turn_persisted_item_count": max(state.stored - state.turn_start, 0),
            "trace": state.trace,
        }

    def _split_input(self) -> tuple[Any, list[dict[str, Any]]]:
        """Return what the model is shown before the items of this run, and these items."""
        state, known = self.state, [*self.history, *(entry.item for entry in self.state.transcript)]
        if state.view is not None:
            shown = [known[part] if isinstance(part, int) else part for part in state.view.shown]
            return shown, self._write_items(max(state.view.since, self.given))
        if not self.history and isinstance(state.input, str):
            return state.input, self._write_items(self.given)
        given = known[: len(self.history) + self.given] if state.input_taken else state.input
        return given, self._write_items(self.given)

    def _write_items(self, start: int) -> list[dict[str, Any]]:
        return [self._write_item(entry) for entry in self.state.transcript[start:] if not entry.hidden]

    # --- items ------------------------------------------------------------------------------------

    def _find_agent(self, path: str) -> Any:
        agent = self.graph.find(path)
        if agent is None:
            raise NotRepresentable(f"no declared handoff leads to the agent at {path!r}")
        return agent

    def _write_agent(self, path: str) -> dict[str, str]:
        return {"name": self._find_agent(path).name}

    def _write_item(self, entry: TranscriptEntry) -> dict[str, Any]:
        kind = _ITEM_TYPES.get(entry.kind)
        if kind is None or entry.kind == "input":
            raise NotRepresentable("input was added to the started run")
        item: dict[str, Any] = {"type": kind, "raw_item": entry.item, "agent": self._write_agent(entry.agent)}
        if entry.kind == "output":
            item["output"] = entry.item.get("output") if entry.value is None else entry.value
            if entry.custom_data is not None:
                item["custom_data"] = entry.custom_data
        if entry.kind == "handed" and entry.target is not None:
            item |= {"source_agent": item["agent"], "target_agent": self._write_agent(entry.target)}
        return item

    def _write_response(self, index: int) -> dict[str, Any]:
        record = self.state.responses[index]
        return {
            "usage": write_usage(record.usage),
            "output": [entry.item for entry in self.state.transcript[record.start : record.stop]],
            "response_id": record.response_id,
            "request_id": record.request_id,
        }

    # --- calls ------------------------------------------------------------------------------------

    def _write_processed_response(self, interruptions: list[dict[str, Any]]) -> dict[str, Any]:
        state, latest = self.state, self.state.responses[-1]
        return {
            "new_items": [self._write_item(entry) for entry in state.transcript[latest.start : latest.stop]],
            "tools_used": [str(call.tool) for call in state.calls],
            "functions": [self._write_call(call) for call in state.calls if is_function_call(call)],
            "shell_actions": [self._write_shell_call(call) for call in state.calls if call.tool.kind == "local"],
            **{name: [] for name in _NO_ACTIONS},
            "mcp_approval_requests": [self._write_request(call) for call in state.calls if call.kind == "mcp"],
            "interruptions": interruptions,
        }

    def _write_call(self, call: CallRecord) -> dict[str, Any]:
        tool = match_tool(index_tools_by_ref(self._find_agent(self.state.agent).tools), call.tool)
        item = self.state.transcript[call.position].item
        described: dict[str, Any] = {"name": call.tool.name, "lookupKey": write_lookup_key(call.tool)}
        if tool is not None:
            described |= {"description": tool.description, "paramsJsonSchema": tool.params_json_schema}
        if call.tool.kind == "namespaced":
            described |= {"namespace": call.tool.namespace, "qualifiedName": str(call.tool)}
        written: dict[str, Any] = {"tool_call": item, "tool": described}
        if call.child is not None and call.status == "waiting":
            child = msgspec.structs.replace(call.child, usage=self.state.usage)
            written["agent_run_state"] = _Writer(child, self.graph, []).write(None)
        return written

    def _write_shell_call(self, call: CallRecord) -> dict[str, Any]:
        if call.tool.namespace != "shell_call":
            raise NotRepresentable(f"the call {call.id!r} is a {call.tool.namespace}")
        return {"tool_call": self.state.transcript[call.position].item, "shell": {"name": call.tool.name}}

    def _write_request(self, call: CallRecord) -> dict[str, Any]:
        for tool in self._find_agent(self.state.agent).tools:
            config = getattr(tool, "tool_config", None)
            if isinstance(config, dict) and config.get("server_label") == call.tool.namespace:
                described = {"name": "hosted_mcp", "tool_config": config}
                return {
                    "request_item": {"raw_item": self.state.transcript[call.position].item},
                    "mcp_tool": described,
                }
        raise NotRepresentable(f"the agent has no hosted MCP server {call.tool.namespace!r}")

    def _iter_interruptions(self) -> Iterator[dict[str, Any]]:
        for call in self.state.calls:
            if call.status == "waiting" and call.child is not None:
                yield from _Writer(call.child, self.graph, [])._iter_interruptions()
            elif call.status == "waiting":
                item = {
                    "type": "tool_approval_item",
                    "raw_item": self.state.transcript[call.position].item,
                    "agent": self._write_agent(self.state.agent),
                    "tool_name": call.tool.name,
                }
                yield item | ({"tool_lookup_key": write_lookup_key(call.tool)} if is_function_call(call) else {})

    def _write_guardrails(self) -> dict[str, list[dict[str, Any]]]:
        written: dict[str, list[dict[str, Any]]] = {
            f"{kind}_guardrail_results": [] for kind in ("input", "output", "tool_input", "tool_output")
        }
        for record in self.state.guardrails:
            written[f"{record.kind}_guardrail_results"].append(self._write_guardrail(record))
        return written

    def _write_guardrail(self, record: GuardrailRecord) -> dict[str, Any]:
        guardrail = {"type": record.kind, "name": record.name}
        if record.kind in ("tool_input", "tool_output"):
            behavior = record.behavior or {"type": "allow"}
            return {"guardrail": guardrail, "output": {"outputInfo": record.info, "behavior": behavior}}
        output = {"tripwireTriggered": record.tripped, "outputInfo": record.info}
        written: dict[str, Any] = {"guardrail": guardrail, "output": output}
        if record.kind == "output":
            written |= {"agentOutput": record.judged, "agent": self._write_agent(record.agent)}
        return written


def is_function_call(call: CallRecord) -> bool:
    return call.kind == "function" and call.tool.kind != "local"


def write_lookup_key(tool: ToolRef) -> dict[str, str]:
    """Return the key of a tool as openai-agents writes it."""
    key = {"kind": tool.kind, "name": tool.name}
    return key if tool.namespace is None else {"kind": tool.kind, "namespace": tool.namespace, "name": tool.name}


def iter_all_decisions(state: State) -> Iterator[RecordedDecision]:
    """Yield the decisions about calls of a run and of its nested runs, which openai-agents keeps in one place.

    One about every call of a tool becomes one about each call that waits: openai-agents asks about later ones.
    """
    for made in state.approvals:
        if made.call_id is not None:
            yield made
            continue
        for call in state.calls:
            if call.status == "waiting" and call.tool == made.tool and made.owner in (None, state.agent):
                yield RecordedDecision(made.tool, made.decision, call.id)
    for call in state.calls:
        if call.child is not None:
            yield from iter_all_decisions(call.child)


def write_decisions(decisions: Iterable[RecordedDecision]) -> dict[str, dict[str, Any]]:
    """Return decisions about calls by the key of their tool. The first about a call counts."""
    written: dict[str, dict[str, Any]] = {}
    for made in decisions:
        key = made.tool.name if made.tool.kind == "hosted_mcp" else str(made.tool)
        entry = written.setdefault(key, {"approved": [], "rejected": []})
        if made.call_id in (*entry["approved"], *entry["rejected"]):
            continue
        entry["approved" if made.decision.approved else "rejected"].append(made.call_id)
        if made.decision.message is not None:
            entry.setdefault("rejection_messages", {})[made.call_id] = made.decision.message
    return written


def write_usage(usage: UsageRecord) -> dict[str, Any]:
    """Return usage as openai-agents writes it: details are lists of one entry, except in the entries of requests."""
    read = {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_write}
    return {
        "requests": usage.requests,
        "input_tokens": usage.input,
        "input_tokens_details": [read],
        "output_tokens": usage.output,
        "output_tokens_details": [{"reasoning_tokens": usage.reasoning}],
        "total_tokens": usage.total,
        "request_usage_entries": [
            {
                "input_tokens": entry.input,
                "output_tokens": entry.output,
                "total_tokens": entry.total,
                "input_tokens_details": {"cached_tokens": entry.cached, "cache_write_tokens": entry.cache_write},
                "output_tokens_details": {"reasoning_tokens": entry.reasoning},
            }
            for entry in usage.entries
        ],
    }


def write_context(context: SavedContext | None) -> dict[str, Any]:
    """Return the program's context and how it was saved."""
    if context is None:
        meta = {"original_type": "none", "serialized_via": "none", "requires_deserializer": False, "omitted": False}
        return {"context": None, "context_meta": meta}
    own = context.codec is not None
    meta = {
        "original_type": "custom" if own or context.omitted else "mapping",
        "serialized_via": "omitted" if context.data is None else "context_serializer" if own else "mapping",
        "requires_deserializer": own,
        "omitted": context.data is None,
    }
    return {"context": context.data if context.data is not None else {}, "context_meta": meta}
