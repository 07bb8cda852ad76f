"""Contexts, and the decisions about calls that they record."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast import InvalidDeclaration, ModelBehaviorError, RunContextWrapper, ToolContext, Usage
from standfast.agents import ApprovalDecision, Approvals, RecordedDecision, ToolRef


@dataclass
class ApprovalItem:
    """The attributes of an approval item that contexts use."""

    call_id: Any = "call_1"
    tool_name: str | None = "refund"
    arguments: str | None = '{"order": 7}'
    tool_namespace: str | None = None
    tool_lookup_key: Any = None
    agent_path: str | None = "root"
    raw_item: dict[str, Any] = field(default_factory=lambda: {"type": "function_call"})


def test_a_call_is_undecided_at_first() -> None:
    context = RunContextWrapper(None)
    assert context.is_tool_approved("refund", "call_1") is None
    assert context.get_rejection_message("refund", "call_1") is None


def test_a_decision_is_about_one_call() -> None:
    context = RunContextWrapper(None)
    context.approve_tool(ApprovalItem())
    assert context.is_tool_approved("refund", "call_1") is True
    assert context.is_tool_approved("refund", "call_2") is None
    assert context.is_tool_approved("other", "call_1") is None


def test_a_sticky_decision_is_about_every_call() -> None:
    context = RunContextWrapper(None)
    context.reject_tool(ApprovalItem(), always_reject=True, rejection_message="never")
    assert context.is_tool_approved("refund", "call_2") is False
    assert context.get_rejection_message("refund", "call_2") == "never"


@pytest.mark.parametrize("sticky_first", [True, False])
def test_a_decision_about_a_call_takes_precedence_over_a_sticky_one(sticky_first: bool) -> None:
    context = RunContextWrapper(None)

    def sticky() -> None:
        context.approve_tool(ApprovalItem("call_0"), always_approve=True)

    def exact() -> None:
        context.reject_tool(ApprovalItem("call_1"), rejection_message="not this one")

    for decide in (sticky, exact) if sticky_first else (exact, sticky):
        decide()
    assert context.is_tool_approved("refund", "call_1") is False
    assert context.get_rejection_message("refund", "call_1") == "not this one"
    assert context.is_tool_approved("refund", "call_2") is True


def test_a_later_decision_about_the_same_call_replaces_it() -> None:
    context = RunContextWrapper(None)
    context.reject_tool(ApprovalItem(), rejection_message="no")
    context.approve_tool(ApprovalItem())
    assert context.is_tool_approved("refund", "call_1") is True
    assert context.get_rejection_message("refund", "call_1") is None


def test_a_decision_does_not_apply_to_another_namespace() -> None:
    context = RunContextWrapper(None)
    context.approve_tool(ApprovalItem(tool_namespace="shop"), always_approve=True)
    assert context.get_approval_status("refund", "call_2", tool_namespace="shop") is True
    assert context.get_approval_status("refund", "call_2", tool_lookup_key=("namespaced", "shop", "refund")) is True
    assert context.get_approval_status("refund", "call_2") is None
    assert context.get_approval_status("refund", "call_2", tool_namespace="bank") is None
    assert context.get_approval_status("refund", "call_2", tool_namespace="refund") is None


def test_a_decision_does_not_apply_to_another_agent() -> None:
    context = RunContextWrapper(None)
    context.approve_tool(ApprovalItem(agent_path="root"), always_approve=True)
    other = ApprovalItem("call_9", agent_path="root/handoff:billing")
    assert context.get_approval_status("refund", "call_9", current_invocation=other) is None
    same = ApprovalItem("call_9", agent_path="root")
    assert context.get_approval_status("refund", "call_9", current_invocation=same) is True


def test_without_an_agent_the_decisions_of_all_agents_must_agree() -> None:
    context = RunContextWrapper(None)
    context.approve_tool(ApprovalItem(agent_path="root"), always_approve=True)
    assert context.is_tool_approved("refund", "call_9") is True
    context.reject_tool(ApprovalItem("call_2", agent_path="root/handoff:billing"), always_reject=True)
    assert context.is_tool_approved("refund", "call_9") is None


def test_an_approved_call_with_other_arguments_is_rejected() -> None:
    context = RunContextWrapper(None)
    context.approve_tool(ApprovalItem(arguments='{"order": 7, "amount": 1}'))
    same = ApprovalItem(arguments='{ "amount": 1, "order": 7 }')
    assert context.get_approval_status("refund", "call_1", current_invocation=same) is True
    with pytest.raises(ModelBehaviorError, match="other arguments"):
        context.get_approval_status("refund", "call_1", current_invocation=ApprovalItem(arguments='{"order": 8}'))


def test_hosted_calls_are_identified_by_their_server() -> None:
    def make_item(server: str) -> ApprovalItem:
        raw = {"type": "mcp_approval_request", "server_label": server, "name": "refund"}
        return ApprovalItem("mcpr_1", raw_item=raw, arguments=None)

    context = RunContextWrapper(None)
    context.approve_tool(make_item("shop"), always_approve=True)
    assert context.get_approval_status("refund", "mcpr_2", existing_pending=make_item("shop")) is True
    assert context.get_approval_status("refund", "mcpr_2", existing_pending=make_item("bank")) is None
    assert context.is_tool_approved("refund", "mcpr_2") is None


@pytest.mark.parametrize("call_id", [None, "", 7])
def test_a_call_without_an_id_cannot_be_approved(call_id: Any) -> None:
    with pytest.raises(ModelBehaviorError, match="no id"):
        RunContextWrapper(None).approve_tool(ApprovalItem(call_id), always_approve=True)


def test_an_approval_item_without_a_name_is_rejected() -> None:
    with pytest.raises(ModelBehaviorError, match="name its tool"):
        RunContextWrapper(None).approve_tool(ApprovalItem(tool_name=None))


def test_a_call_can_be_approved_with_edited_arguments() -> None:
    context = RunContextWrapper(None)
    context.approve_tool(ApprovalItem(), always_approve=True, arguments='{"order": 8}')
    decision = context.approvals.find(ToolRef("bare", "refund"), "call_1", arguments='{"order": 7}')
    assert decision is not None
    assert decision.arguments == '{"order": 8}'
    sticky = context.approvals.find(ToolRef("bare", "refund"), "call_2", owner="root")
    assert sticky == ApprovalDecision(True)


REFS = st.builds(ToolRef, st.sampled_from(["bare", "deferred_top_level"]), st.sampled_from("ab"))
DECISIONS = st.builds(ApprovalDecision, st.booleans(), st.sampled_from([None, "no"]))
RECORDS = st.builds(
    RecordedDecision, REFS, DECISIONS, st.sampled_from([None, "1", "2"]), st.sampled_from([None, "root", "root/x"])
)


@settings(max_examples=50)
@given(st.lists(RECORDS), REFS, st.sampled_from(["1", "2", "3"]), st.sampled_from([None, "root", "root/x"]))
def test_decisions_round_trip_through_their_records(
    records: list[RecordedDecision], ref: ToolRef, call: str, owner: str | None
) -> None:
    approvals = Approvals(records)
    again = Approvals(approvals.list_decisions())
    assert again == approvals
    assert again.find(ref, call, owner=owner) == approvals.find(ref, call, owner=owner)


def test_a_copy_is_independent_of_later_decisions() -> None:
    approvals = Approvals()
    copy = approvals.copy()
    approvals.record(ToolRef("bare", "a"), "1", ApprovalDecision(True))
    assert approvals
    assert not copy


def test_a_tool_context_shares_the_state_of_its_run() -> None:
    run = RunContextWrapper({"user": "ann"}, Usage(requests=1), tool_input={"city": "Rome"})
    call = {"type": "function_call", "name": "refund", "namespace": "shop", "arguments": '{"a": 1}'}
    tool = ToolContext.from_agent_context(run, "call_1", call, idempotency_key="run_1/call_1")
    assert tool.context is run.context
    assert tool.usage is run.usage
    assert tool.approvals is run.approvals
    assert tool.tool_input == {"city": "Rome"}
    assert (tool.tool_name, tool.tool_arguments, tool.tool_namespace) == ("refund", '{"a": 1}', "shop")
    assert (tool.qualified_tool_name, tool.idempotency_key) == ("shop.refund", "run_1/call_1")


@pytest.mark.parametrize("missing", ["tool_name", "tool_call_id", "tool_arguments"])
def test_a_tool_context_needs_name_id_and_arguments(missing: str) -> None:
    fields = {"tool_name": "a", "tool_call_id": "1", "tool_arguments": "{}"}
    del fields[missing]
    with pytest.raises(InvalidDeclaration, match=missing):
        ToolContext(None, **fields)
