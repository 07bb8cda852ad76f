"""Whether the parts of a saved run fit together. What was tampered with, or cut, is refused with the place."""

from collections import Counter

from holdfast.agents.approvals import Approvals
from holdfast.agents.graph import AgentGraph
from holdfast.agents.tool_refs import index_tools_by_ref, match_tool
from holdfast.base.pairing import get_call_id, get_item_type
from holdfast.runs.state import CallRecord, ServerConversation, SessionConversation, State
from holdfast.runs.upgrades import UnreadableState

_ITEM_TYPES = {"function": "function_call", "handoff": "function_call", "mcp": "mcp_approval_request"}
_OUTPUT_KINDS = ("output", "handed", "approval_answer")


def validate_state(state: State, path: str = "$.run") -> None:
    """Make sure that the parts of a run fit together, or say which do not."""
    length = len(state.transcript)
    if not 0 <= state.stored <= length:
        raise UnreadableState(f"{state.stored} of {length} items cannot be stored", path=f"{path}.stored")
    for index, response in enumerate(state.responses):
        if not 0 <= response.start <= response.stop <= length:
            raise UnreadableState("an answer lies outside of the transcript", path=f"{path}.responses[{index}]")
    if state.turn != len(state.responses):
        raise UnreadableState(f"turn {state.turn} with {len(state.responses)} answers", path=f"{path}.turn")
    if state.ended and state.calls:
        raise UnreadableState("a run that has ended has no calls to make", path=f"{path}.calls")
    _check_calls(state, path)
    _check_selection(state, path)


def _check_calls(state: State, path: str) -> None:
    answered = Counter(get_call_id(entry.item) for entry in state.transcript if entry.kind in _OUTPUT_KINDS)
    for index, call in enumerate(state.calls):
        place = f"{path}.calls[{index}]"
        _check_call(state, call, place)
        if any(other.id == call.id for other in state.calls[:index]):
            raise UnreadableState(f"the call {call.id!r} is there twice", path=place)
        if call.status == "done" and not answered[call.id]:
            raise UnreadableState(f"the call {call.id!r} is done, but its output is missing", path=place)
        if call.child is not None:
            validate_state(call.child, f"{place}.child")
    open_calls = {call.id for call in state.calls}
    for index, entry in enumerate(state.transcript):
        made = entry.kind in ("call", "handoff", "approval_asked") and get_item_type(entry.item) in _ITEM_TYPES.values()
        if made and not answered[get_call_id(entry.item)] and get_call_id(entry.item) not in open_calls:
            raise UnreadableState(
                "a call was neither answered nor is it to be made", path=f"{path}.transcript[{index}]"
            )


def _check_call(state: State, call: CallRecord, path: str) -> None:
    if not state.responses or not state.turn_start <= call.position < state.responses[-1].stop:
        raise UnreadableState("a call lies outside of the latest answer", path=path)
    item = state.transcript[call.position].item
    named = call.kind == "mcp" or item.get("name") == call.tool.name
    if get_call_id(item) != call.id or get_item_type(item) != _ITEM_TYPES[call.kind] or not named:
        raise UnreadableState(f"the call {call.id!r} is not the one in the transcript", path=path)


def validate_approvals(state: State, graph: AgentGraph, path: str = "$.run") -> None:
    """Make sure that a person agreed to every call that is about to be made and needs that."""
    approvals = Approvals(list(state.approvals))
    tools = index_tools_by_ref(getattr(graph.find(state.agent), "tools", ()))
    for index, call in enumerate(state.calls):
        place = f"{path}.calls[{index}]"
        if call.child is not None:
            validate_approvals(call.child, graph, f"{place}.child")
        tool = match_tool(tools, call.tool)
        asks = tool is not None and tool.needs_approval is True
        if not asks or call.uncertain or call.status not in ("approved", "started", "failed"):
            continue
        decision = approvals.find(call.tool, call.id, owner=state.agent)
        if decision is None or not decision.approved:
            raise UnreadableState(f"nobody agreed to the call {call.id!r} of {call.tool}", path=place)


def _check_selection(state: State, path: str) -> None:
    window = state.conversation.window if isinstance(state.conversation, SessionConversation) else 0
    server = state.conversation
    if isinstance(server, ServerConversation) and not 0 <= server.acknowledged <= len(state.transcript):
        raise UnreadableState("more is acknowledged than there is", path=f"{path}.conversation.acknowledged")
    if state.view is None:
        return
    for index, part in enumerate(state.view.shown):
        if isinstance(part, int) and not 0 <= part < window + len(state.transcript):
            raise UnreadableState("the model is shown an item that there is not", path=f"{path}.view.shown[{index}]")
