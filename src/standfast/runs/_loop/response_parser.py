"""Parse a model response into transcript entries, calls and the final output."""

from collections.abc import Sequence

from standfast.agents.errors import ModelBehaviorError
from standfast.agents.tool_identity import ToolRef
from standfast.base.item_pairs import CALL_TYPE_BY_OUTPUT_TYPE, OUTPUT_TYPE_BY_CALL_TYPE, get_item_type
from standfast.base.items import Item
from standfast.runs.core.state import CallRecord, EntryKind, FinalOutput, TranscriptEntry
from standfast.runs.items import ItemHelpers
from standfast.runs.toolbox import Toolbox

NOT_FOUND_MESSAGE = "Tool '{name}' not found."

_ENTRY_KINDS: dict[str, EntryKind] = {
    "message": "message",
    "reasoning": "reasoning",
    "tool_search_call": "search",
    "tool_search_output": "found",
    "mcp_list_tools": "tools_listed",
    "mcp_approval_request": "approval_asked",
    "mcp_approval_response": "approval_answer",
    "compaction": "compaction",
}
# Calls of tools that standfast does not implement.
_UNSUPPORTED_CALLS = frozenset(OUTPUT_TYPE_BY_CALL_TYPE) - {
    "function_call",
    "tool_search_call",
    "mcp_approval_request",
    "program",
}


def parse_response(
    items: Sequence[Item], *, agent: str, agent_name: str, toolbox: Toolbox, plain_text: bool, lenient: bool
) -> tuple[list[TranscriptEntry], list[CallRecord], FinalOutput | None]:
    """Return the entries, the calls (with positions counted from the first entry) and the final output, if any.

    A call of an unknown tool raises :class:`ModelBehaviorError`, or with ``lenient`` becomes a rejected call.
    """
    entries: list[TranscriptEntry] = []
    calls: list[CallRecord] = []
    for item in items:
        call = _parse_call(item, len(entries), toolbox, agent_name, lenient)
        if call is not None:
            _check_unique_id(call, calls)
            calls.append(call)
        tool = call.tool if call is not None and call.kind == "function" else None
        entries.append(TranscriptEntry(item, _get_entry_kind(item, call), agent=agent, tool=tool))
    return entries, calls, None if calls else _parse_final_output(items, plain_text)


def _get_entry_kind(item: Item, call: CallRecord | None) -> EntryKind:
    if call is not None and call.kind == "handoff":
        return "handoff"
    kind = get_item_type(item)
    return _ENTRY_KINDS.get(kind) or ("output" if kind in CALL_TYPE_BY_OUTPUT_TYPE else "call")


def _parse_call(item: Item, position: int, toolbox: Toolbox, agent_name: str, lenient: bool) -> CallRecord | None:
    kind = get_item_type(item)
    if kind == "function_call":
        return _parse_function_call(item, position, toolbox, agent_name, lenient)
    if kind == "mcp_approval_request":
        name, label = item.get("name"), item.get("server_label")
        if not isinstance(name, str) or not isinstance(label, str):
            raise ModelBehaviorError("an MCP approval request must name its tool and its server_label")
        return CallRecord(_require_text(item, "id"), position, ToolRef("hosted_mcp", name, label), kind="mcp")
    if kind in _UNSUPPORTED_CALLS:
        raise ModelBehaviorError(f"the agent {agent_name!r} has no tool for a {kind}")
    return None


def _parse_function_call(item: Item, position: int, toolbox: Toolbox, agent_name: str, lenient: bool) -> CallRecord:
    name, namespace = _require_text(item, "name"), item.get("namespace")
    ref = ToolRef.from_call(name, namespace if isinstance(namespace, str) else None)
    call_id, arguments = _require_text(item, "call_id"), item.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        raise ModelBehaviorError(f"the arguments of the call {call_id!r} must be JSON text, not {arguments!r}")
    if ref.kind == "bare" and name in toolbox.handoffs_by_name:
        return CallRecord(call_id, position, ref, kind="handoff")
    tool = toolbox.find_tool(ref)
    if tool is not None:
        return CallRecord(call_id, position, ToolRef.from_tool(tool))
    if not lenient:
        names = ", ".join([*map(str, toolbox.tools_by_ref), *toolbox.handoffs_by_name]) or "none"
        raise ModelBehaviorError(f"Tool {ref} not found in agent {agent_name}; it has {names}")
    return CallRecord(call_id, position, ref, status="rejected", message=NOT_FOUND_MESSAGE.format(name=ref))


def _require_text(item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise ModelBehaviorError(f"the {name} of a {get_item_type(item)} must be a non-empty string, not {value!r}")
    return value


def _check_unique_id(call: CallRecord, calls: Sequence[CallRecord]) -> None:
    if any(other.id == call.id for other in calls):
        raise ModelBehaviorError(f"the model made two calls with the id {call.id!r} in one response")


def _parse_final_output(items: Sequence[Item], plain_text: bool) -> FinalOutput | None:
    messages = [item for item in items if get_item_type(item) == "message"]
    if messages:
        refusal = ItemHelpers.extract_refusal(messages[-1])
        if refusal:
            return FinalOutput(refusal=refusal)
        text = ItemHelpers.extract_last_text(messages[-1])
        if text is not None and (text or plain_text):
            return FinalOutput(text=text)
    return FinalOutput(text="") if plain_text else None
