"""The items of a model's response as transcript entries, calls and the final output."""

from collections.abc import Sequence
from dataclasses import replace

from standfast.agents.errors import ModelBehaviorError
from standfast.agents.tool_identity import LOCAL_CALL_TYPES, ToolRef
from standfast.agents.tools import FunctionTool
from standfast.base.item_pairs import CALL_TYPE_BY_OUTPUT_TYPE, get_item_type
from standfast.base.items import Item
from standfast.models.interface import ModelResponse
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
    return _parse_local_call(item, kind, position, toolbox, agent_name) if kind in LOCAL_CALL_TYPES else None


def _parse_local_call(item: Item, kind: str, position: int, toolbox: Toolbox, agent_name: str) -> CallRecord | None:
    name = _require_text(item, "name") if kind == "custom_tool_call" else None
    tool = toolbox.find_local_tool(kind, name)
    if tool is None:
        named = "" if name is None else f" named {name!r}"
        raise ModelBehaviorError(f"the agent {agent_name!r} has no tool for a {kind}{named}")
    if tool.is_run_by_provider():
        return None
    call_id = item.get("call_id") or item.get("id")
    if not isinstance(call_id, str):
        raise ModelBehaviorError(f"a {kind} needs a call_id")
    return CallRecord(call_id, position, ToolRef("local", tool.name, kind))


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
        _check_caller(item, tool)
        return CallRecord(call_id, position, ToolRef.from_tool(tool))
    if not lenient:
        names = ", ".join([*map(str, toolbox.tools_by_ref), *toolbox.handoffs_by_name]) or "none"
        problem = ModelBehaviorError(f"Tool {ref} not found in agent {agent_name}")
        problem.add_note(f"the agent {agent_name!r} has {names}")
        problem.missing_tool = str(ref)
        raise problem
    return CallRecord(call_id, position, ref, status="rejected", message=NOT_FOUND_MESSAGE.format(name=ref))


def _check_caller(item: Item, tool: FunctionTool) -> None:
    """Raise :class:`ModelBehaviorError` if a program made the call, or the model itself, and the tool forbids that."""
    by_program = (item.get("caller") or {}).get("type") == "program"
    caller, allowed = "programmatic" if by_program else "direct", tool.allowed_callers or ["direct"]
    if caller not in allowed:
        raise ModelBehaviorError(f"the {caller} call of the tool {tool.name!r} is not allowed, only {allowed} calls")


def _require_text(item: Item, name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise ModelBehaviorError(f"the {name} of a {get_item_type(item)} must be a non-empty string, not {value!r}")
    return value


def _check_unique_id(call: CallRecord, calls: Sequence[CallRecord]) -> None:
    if any(other.id == call.id for other in calls):
        raise ModelBehaviorError(f"the model made two calls with the id {call.id!r} in one response")


def drop_repeated_calls(response: ModelResponse) -> ModelResponse:
    """Return the response without calls that repeat another one of it with the same id: such a call is made once."""
    items = response.items
    kept = [
        place
        for place, item in enumerate(items)
        if get_item_type(item) != "function_call" or not any(_is_same_call(item, other) for other in items[:place])
    ]
    if len(kept) == len(items):
        return response
    return replace(response, output=[response.output[place] for place in kept])


def _is_same_call(item: Item, other: Item) -> bool:
    return all(item.get(name) == other.get(name) for name in ("type", "call_id", "name", "namespace", "arguments"))


def _parse_final_output(items: Sequence[Item], plain_text: bool) -> FinalOutput | None:
    messages = [item for item in items if get_item_type(item) == "message"]
    if messages:
        refusal = ItemHelpers.extract_refusal(messages[-1])
        if refusal:
            return FinalOutput(refusal=refusal)
        text = ItemHelpers.extract_last_text(messages[-1])
        if text is not None and (text or plain_text):
            return FinalOutput(text=text)
    return FinalOutput(text="") if plain_text and not any(map(_is_hosted_call, items)) else None


def _is_hosted_call(item: Item) -> bool:
    """Return whether the provider called a tool of its own, whose result the model has not answered to yet."""
    return _get_entry_kind(item, None) == "call"
