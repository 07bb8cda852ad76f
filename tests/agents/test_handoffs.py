"""Handoffs and their input filters."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from standfast import (
    Agent,
    Handoff,
    HandoffInputData,
    InvalidDeclaration,
    ModelBehaviorError,
    RunContextWrapper,
    UserError,
    default_handoff_history_mapper,
    get_conversation_history_wrappers,
    handoff,
    nest_handoff_history,
    reset_conversation_history_wrappers,
    set_conversation_history_wrappers,
)
from standfast.agents.handoff_filters import remove_all_tools

BILLING = Agent("Billing Desk", handoff_description="Knows about money.")
CONTEXT = RunContextWrapper("ann")


class Reason(BaseModel):
    why: str
    urgent: bool = False


@dataclass
class StubRunItem:
    type: str
    item: dict[str, Any]

    def to_input_item(self) -> dict[str, Any]:
        return self.item


def message(text: str) -> StubRunItem:
    return StubRunItem("message_output_item", {"type": "message", "role": "assistant", "content": text})


def call(name: str = "find") -> StubRunItem:
    return StubRunItem("tool_call_item", {"type": "function_call", "name": name, "call_id": "1", "arguments": "{}"})


def output() -> StubRunItem:
    return StubRunItem("tool_call_output_item", {"type": "function_call_output", "call_id": "1", "output": "42"})


async def test_a_plain_handoff_has_the_default_names() -> None:
    transfer = handoff(BILLING)
    assert transfer.tool_name == "transfer_to_billing_desk"
    assert transfer.tool_description == "Handoff to the Billing Desk agent to handle the request. Knows about money."
    assert transfer.input_json_schema == {
        "type": "object",
        "properties": {},
        "required": [],
        "additionalProperties": False,
    }
    assert json.loads(transfer.get_transfer_message(BILLING)) == {"assistant": "Billing Desk"}
    assert await transfer.on_invoke_handoff(CONTEXT, "") is BILLING
    assert transfer.agent is BILLING


def test_names_can_be_overridden() -> None:
    transfer = handoff(BILLING, tool_name_override="to_billing", tool_description_override="For money.")
    assert (transfer.tool_name, transfer.tool_description, transfer.agent_name) == (
        "to_billing",
        "For money.",
        "Billing Desk",
    )


@pytest.mark.parametrize("is_async", [False, True])
async def test_the_input_is_converted_to_its_type(is_async: bool) -> None:
    received = []

    def on_handoff(context: RunContextWrapper[str], reason: Reason) -> None:
        received.append((context.context, reason))

    async def on_handoff_later(context: RunContextWrapper[str], reason: Reason) -> None:
        received.append((context.context, reason))

    transfer = handoff(BILLING, on_handoff=on_handoff_later if is_async else on_handoff, input_type=Reason)
    assert transfer.input_json_schema["required"] == ["why", "urgent"]
    assert await transfer.on_invoke_handoff(CONTEXT, '{"why": "refund"}') is BILLING
    assert received == [("ann", Reason(why="refund"))]


@pytest.mark.parametrize(
    ("arguments", "problem"), [("{", "Invalid JSON"), ("{}", "why: Field required"), (None, "needs an input")]
)
async def test_an_invalid_input_raises_model_behavior_error(arguments: Any, problem: str) -> None:
    transfer = handoff(BILLING, on_handoff=lambda context, reason: None, input_type=Reason)
    with pytest.raises(ModelBehaviorError, match=problem):
        await transfer.on_invoke_handoff(CONTEXT, arguments)


@pytest.mark.parametrize(
    ("on_handoff", "input_type", "problem"),
    [
        (lambda a, b: None, None, r"must take \(context\), it takes 2"),
        (lambda a: None, Reason, r"must take \(context, input\), it takes 1"),
        (None, Reason, "needs an on_handoff"),
        (3, None, "must be a function"),
    ],
)
def test_an_on_handoff_with_the_wrong_parameters_is_rejected(on_handoff: Any, input_type: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        handoff(BILLING, on_handoff=on_handoff, input_type=input_type)


def test_an_input_type_without_a_schema_is_rejected() -> None:
    class Opaque: ...

    with pytest.raises(InvalidDeclaration, match="no JSON schema"):
        handoff(BILLING, on_handoff=lambda context, it: None, input_type=Opaque)


async def test_only_enabled_handoffs_are_offered_and_plain_agents_become_handoffs() -> None:
    other = handoff(Agent("other"), is_enabled=lambda context, agent: context.context == "bob")
    agent = Agent("a", handoffs=[BILLING, other])
    enabled = await agent.get_handoffs(CONTEXT)
    assert [type(one) for one in enabled] == [Handoff]
    assert [one.agent_name for one in await agent.get_handoffs(RunContextWrapper("bob"))] == ["Billing Desk", "other"]


def test_the_history_becomes_a_summary_around_the_messages_of_the_last_turn() -> None:
    reasoning = StubRunItem("reasoning_item", {"type": "reasoning", "id": "r"})
    data = HandoffInputData("hi there", (reasoning, call(), output()), (message("one moment"), call(), output()))
    nested = nest_handoff_history(data)
    assert nested.new_items == data.new_items
    assert (nested.pre_handoff_items, nested.input_items) == ((), ())
    summary, said, rest = nested.input_history
    assert said == message("one moment").to_input_item()
    assert len(rest["content"].splitlines()) == 5  # type: ignore[index]
    assert summary["role"] == "assistant"  # type: ignore[index]
    lines = summary["content"].splitlines()  # type: ignore[index]
    start, end = get_conversation_history_wrappers()
    assert (lines[1], lines[-1]) == (start, end)
    assert lines[2] == "1. user: hi there"
    assert [json.loads(line.split(". ", 1)[1])["type"] for line in lines[3:-1]] == [
        "reasoning",
        "function_call",
        "function_call_output",
    ]


def test_a_history_is_never_nested_twice() -> None:
    once = nest_handoff_history(HandoffInputData("hi", (), (message("a"),)))
    twice = nest_handoff_history(once.clone(new_items=(message("b"),), input_items=None))
    summary, said = twice.input_history
    assert summary["content"].splitlines()[2:-1] == ["1. user: hi", "2. assistant: a"]  # type: ignore[index]
    assert said == message("b").to_input_item()


def test_a_user_message_that_looks_like_a_nested_history_is_not_unpacked() -> None:
    (forged,) = default_handoff_history_mapper([{"role": "user", "content": "hi"}])
    forged["role"] = "user"
    (summary,) = nest_handoff_history(HandoffInputData((forged,), (), ())).input_history
    assert len(summary["content"].splitlines()) == 4  # type: ignore[index]


# Characters that matter for lines, numbers, roles and JSON, and two beyond ASCII.
TEXT = st.text('a1. :\n\r\t\u2028\x85\x00{}[]"\\<>/é☃', max_size=30)
ITEMS = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT}),
    st.fixed_dictionaries({"type": st.just("function_call"), "call_id": TEXT, "name": TEXT}),
)


@given(st.lists(ITEMS, min_size=1, max_size=5))
def test_a_nested_history_can_be_unpacked_without_loss(items: list[dict[str, Any]]) -> None:
    unpacked: list[Any] = []

    def record(transcript: list[Any]) -> list[Any]:
        unpacked.extend(transcript)
        return transcript

    nested = nest_handoff_history(HandoffInputData(tuple(items), (), ()))
    nest_handoff_history(nested, history_mapper=record)
    assert unpacked == items


def test_the_wrappers_can_be_changed_and_reset() -> None:
    try:
        set_conversation_history_wrappers(start="<<<")
        assert get_conversation_history_wrappers() == ("<<<", "</CONVERSATION HISTORY>")
        assert "\n<<<\n" in default_handoff_history_mapper([])[0]["content"]
    finally:
        reset_conversation_history_wrappers()
    assert get_conversation_history_wrappers()[0] == "<CONVERSATION HISTORY>"


def test_remove_all_tools_leaves_only_messages() -> None:
    history = (
        {"role": "user", "content": "x"},
        *({"type": kind} for kind in ("function_call", "function_call_output", "reasoning", "web_search_call")),
        *({"type": kind} for kind in ("mcp_list_tools", "mcp_approval_request", "mcp_approval_response")),
        {"type": "compaction"},
    )
    data = HandoffInputData(history, (call(), message("a")), (output(), message("b")))
    filtered = remove_all_tools(data)
    assert filtered.input_history == ({"role": "user", "content": "x"}, {"type": "compaction"})
    assert [item.to_input_item()["content"] for item in (*filtered.pre_handoff_items, *filtered.new_items)] == [
        "a",
        "b",
    ]
    assert remove_all_tools(data.clone(input_history="hi")).input_history == "hi"
    assert remove_all_tools(data.clone(input_items=(call(),))).input_items == ()
