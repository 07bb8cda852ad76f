"""Whether the parts of a saved run fit together. What was tampered with, or cut, is refused with the place."""

from collections import Counter

from holdfast.agents.approvals import Approvals
from holdfast.agents.graph import AgentGraph
from holdfast.agents.tool_refs import tool_meant, tools_by_ref
from holdfast.base.pairing import call_id, kind_of
from holdfast.runs.state import CallRecord, InSession, OnServer, State
from holdfast.runs.upgrades import UnreadableState

_ITEMS = {"function": "function_call", "handoff": "function_call", "mcp": "mcp_approval_request"}
_ANSWERS = ("output", "handed", "approval_answer")


def check(state: State, where: str = "$.run") -> None:
    """Make sure that the parts of a run fit together, or say which do not."""
    length = len(state.transcript)
    if not 0 <= state.stored <= length:
        raise UnreadableState(f"{state.stored} of {length} items cannot be stored", path=f"{where}.stored")
    for index, response in enumerate(state.responses):
        if not 0 <= response.start <= response.stop <= length:
            raise UnreadableState("an answer lies outside of the transcript", path=f"{where}.responses[{index}]")
    if state.turn != len(state.responses):
        raise UnreadableState(f"turn {state.turn} with {len(state.responses)} answers", path=f"{where}.turn")
    if state.ended and state.calls:
        raise UnreadableState("a run that has ended has no calls to make", path=f"{where}.calls")
    _check_calls(state, where)
    _check_view(state, where)


def _check_calls(state: State, where: str) -> None:
    answered = Counter(call_id(entry.item) for entry in state.transcript if entry.kind in _ANSWERS)
    for index, call in enumerate(state.calls):
        place = f"{where}.calls[{index}]"
        _check_call(state, call, place)
        if any(other.id == call.id for other in state.calls[:index]):
            raise UnreadableState(f"the call {call.id!r} is there twice", path=place)
        if call.status == "done" and not answered[call.id]:
            raise UnreadableState(f"the call {call.id!r} is done, but its output is missing", path=place)
        if call.child is not None:
            check(call.child, f"{place}.child")
    open_calls = {call.id for call in state.calls}
    for index, entry in enumerate(state.transcript):
        made = entry.kind in ("call", "handoff", "approval_asked") and kind_of(entry.item) in _ITEMS.values()
        if made and not answered[call_id(entry.item)] and call_id(entry.item) not in open_calls:
            raise UnreadableState(
                "a call was neither answered nor is it to be made", path=f"{where}.transcript[{index}]"
            )


def _check_call(state: State, call: CallRecord, place: str) -> None:
    if not state.responses or not state.turn_start <= call.position < state.responses[-1].stop:
        raise UnreadableState("a call lies outside of the latest answer", path=place)
    item = state.transcript[call.position].item
    named = call.kind == "mcp" or item.get("name") == call.tool.name
    if call_id(item) != call.id or kind_of(item) != _ITEMS[call.kind] or not named:
        raise UnreadableState(f"the call {call.id!r} is not the one in the transcript", path=place)


def check_approved(state: State, graph: AgentGraph, where: str = "$.run") -> None:
    """Make sure that a person agreed to every call that is about to be made and needs that."""
    approvals = Approvals(list(state.approvals))
    tools = tools_by_ref(getattr(graph.find(state.agent), "tools", ()))
    for index, call in enumerate(state.calls):
        place = f"{where}.calls[{index}]"
        if call.child is not None:
            check_approved(call.child, graph, f"{place}.child")
        tool = tool_meant(tools, call.tool)
        asks = tool is not None and tool.needs_approval is True
        if not asks or call.uncertain or call.status not in ("approved", "started", "failed"):
            continue
        decision = approvals.find(call.tool, call.id, owner=state.agent)
        if decision is None or not decision.approved:
            raise UnreadableState(f"nobody agreed to the call {call.id!r} of {call.tool}", path=place)


def _check_view(state: State, where: str) -> None:
    window = state.conversation.window if isinstance(state.conversation, InSession) else 0
    server = state.conversation
    if isinstance(server, OnServer) and not 0 <= server.acknowledged <= len(state.transcript):
        raise UnreadableState("more is acknowledged than there is", path=f"{where}.conversation.acknowledged")
    if state.view is None:
        return
    for index, part in enumerate(state.view.shown):
        if isinstance(part, int) and not 0 <= part < window + len(state.transcript):
            raise UnreadableState("the model is shown an item that there is not", path=f"{where}.view.shown[{index}]")
