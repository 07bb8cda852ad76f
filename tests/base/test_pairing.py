"""Which items need each other, judged by a validator that shares no code with it."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.base.pairing import PairingProblem, drop_unpaired, find_pair_ends, find_unpaired, group_into_units
from standfast.testing import NotReplayable, assert_replayable

PAIRS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
}


def user(text: str = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str = "hello") -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str = "rs_1") -> dict[str, Any]:
    return {"type": "reasoning", "id": text, "summary": []}


def call(name: str, kind: str = "function_call") -> dict[str, Any]:
    if kind == "mcp_approval_request":
        return {"type": kind, "id": name, "name": "tool", "arguments": "{}", "server_label": "server"}
    return {"type": kind, "call_id": name, "name": "tool", "arguments": "{}"}


def output(name: str, kind: str = "function_call") -> dict[str, Any]:
    if kind == "mcp_approval_request":
        return {"type": "mcp_approval_response", "approval_request_id": name, "approve": True}
    if kind == "local_shell_call":
        return {"type": "local_shell_call_output", "id": name, "output": "done"}
    return {"type": PAIRS[kind], "call_id": name, "output": "done"}


HOSTED = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    {"type": "mcp_list_tools", "id": "ml_1", "server_label": "server", "tools": []},
    {"type": "tool_search_call", "id": "ts_1", "arguments": {}, "call_id": None},
]
kinds = st.sampled_from([*PAIRS, "mcp_approval_request"])


@st.composite
def answers(draw: st.DrawFn, names: list[str]) -> list[dict[str, Any]]:
    """One response of a model: thoughts, then what they led to, then the outputs in any order."""
    made: list[dict[str, Any]] = [thought(f"rs_{n}") for n in range(draw(st.integers(0, 2)))]
    outputs = []
    for _ in range(draw(st.integers(0, 3))):
        name, kind = draw(st.sampled_from(names)), draw(kinds)
        if (name, kind) in [entry[:2] for entry in outputs]:
            continue
        made.append(call(name, kind))
        outputs.append((name, kind, output(name, kind)))
    if not outputs or draw(st.booleans()):
        made.append(draw(st.sampled_from([said(), *HOSTED])))
    return made + [entry[2] for entry in draw(st.permutations(outputs))]


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A history that every provider accepts. Call ids come back in later turns."""
    items: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            items.append(user())
        items += draw(answers(["call_1", "call_2", "call_3"]))
    return items


@st.composite
def damaged(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A conversation from which items were lost, doubled or exchanged."""
    items = draw(conversations())
    for _ in range(draw(st.integers(0, 6))):
        if not items:
            break
        index = draw(st.integers(0, len(items) - 1))
        match draw(st.sampled_from(["lose", "lose", "double", "exchange", "cut"])):
            case "lose":
                del items[index]
            case "double":
                items.insert(draw(st.integers(0, len(items))), items[index])
            case "exchange":
                other = draw(st.integers(0, len(items) - 1))
                items[index], items[other] = items[other], items[index]
            case "cut":
                items = items[index:] if draw(st.booleans()) else items[:index]
    return items


often = settings(derandomize=True, deadline=None, max_examples=300)


@often
@given(conversations())
def test_a_valid_history_is_shown_unchanged(items: list[dict[str, Any]]) -> None:
    assert_replayable(items)
    assert find_unpaired(items) == []
    assert drop_unpaired(items) == items


@often
@given(damaged())
def test_what_a_model_is_shown_is_acceptable_after_any_damage(items: list[dict[str, Any]]) -> None:
    assert_replayable(drop_unpaired(items))


@often
@given(damaged())
def test_pairing_twice_changes_nothing_more(items: list[dict[str, Any]]) -> None:
    once = drop_unpaired(items)
    assert drop_unpaired(once) == once


@often
@given(damaged())
def test_pairing_keeps_order_and_never_edits(items: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(items)
    kept = drop_unpaired(items)
    assert items == before
    rest = iter(items)
    assert all(any(item is other for other in rest) for item in kept)


@often
@given(damaged())
def test_unpaired_names_exactly_what_is_left_out(items: list[dict[str, Any]]) -> None:
    left_out = [problem.index for problem in find_unpaired(items)]
    assert left_out == sorted(set(left_out))
    assert drop_unpaired(items) == [item for index, item in enumerate(items) if index not in left_out]


@often
@given(damaged())
def test_a_cut_between_groups_separates_nothing(items: list[dict[str, Any]]) -> None:
    ends = find_pair_ends(items)
    assert len(ends) == len(items)
    for cut in range(len(items) + 1):
        if all(end < cut for end in ends[:cut]):
            assert drop_unpaired(items[:cut]) + drop_unpaired(items[cut:]) == drop_unpaired(items)


@often
@given(conversations())
def test_a_cut_between_groups_of_a_valid_history_leaves_two_valid_ones(items: list[dict[str, Any]]) -> None:
    ends = find_pair_ends(items)
    for cut in range(len(items) + 1):
        if all(end < cut for end in ends[:cut]):
            assert_replayable(items[:cut])
            assert_replayable(items[cut:])


@pytest.mark.parametrize(
    ("items", "problems"),
    [
        ([call("a")], [(0, PairingProblem.CALL_WITHOUT_OUTPUT, "a")]),
        ([output("a")], [(0, PairingProblem.OUTPUT_WITHOUT_CALL, "a")]),
        (
            [output("a"), call("a")],
            [(0, PairingProblem.OUTPUT_WITHOUT_CALL, "a"), (1, PairingProblem.CALL_WITHOUT_OUTPUT, "a")],
        ),
        ([call("a"), output("a"), output("a")], [(2, PairingProblem.OUTPUT_WITHOUT_CALL, "a")]),
        ([call("a"), call("a"), output("a")], [(0, PairingProblem.CALL_WITHOUT_OUTPUT, "a")]),
        (
            [call("a", "shell_call"), output("a")],
            [(0, PairingProblem.CALL_WITHOUT_OUTPUT, "a"), (1, PairingProblem.OUTPUT_WITHOUT_CALL, "a")],
        ),
        ([thought()], [(0, PairingProblem.REASONING_WITHOUT_RESULT, None)]),
        ([thought(), user()], [(0, PairingProblem.REASONING_WITHOUT_RESULT, None)]),
        (
            [thought(), call("a"), user()],
            [(0, PairingProblem.REASONING_WITHOUT_RESULT, None), (1, PairingProblem.CALL_WITHOUT_OUTPUT, "a")],
        ),
        ([thought(), call("a"), said()], [(1, PairingProblem.CALL_WITHOUT_OUTPUT, "a")]),
        ([thought(), thought("rs_2"), said()], []),
        ([thought(), {"type": "mcp_list_tools", "tools": []}], []),
        ([call("a"), user(), output("a")], []),
        ([call("a"), output("a"), call("a"), output("a")], []),
    ],
)
def test_each_problem_is_named(
    items: list[dict[str, Any]], problems: list[tuple[int, PairingProblem, str | None]]
) -> None:
    assert [(found.index, found.problem, found.call_id) for found in find_unpaired(items)] == problems


@pytest.mark.parametrize("name", [None, "", 7, [], {}])
@pytest.mark.parametrize("kind", [*PAIRS, "mcp_approval_request"])
def test_a_call_without_a_usable_id_cannot_be_paired(kind: str, name: Any) -> None:
    items = [user(), call(name, kind), output(name, kind), said()]
    assert_replayable(drop_unpaired(items))


@pytest.mark.parametrize("kind", [None, 7, [], {}, True])
def test_an_item_of_no_known_type_is_left_alone(kind: Any) -> None:
    odd = {"type": kind, "call_id": "a"}
    items = [user(), odd, call("a"), output("a")]
    assert drop_unpaired(items) == items
    assert find_pair_ends(items) == [0, 1, 3, 3]
    assert drop_unpaired([thought(), odd]) == [odd]


@pytest.mark.parametrize(
    "items",
    [
        [call("a")],
        [output("a")],
        [call("a"), call("a"), output("a"), output("a")],
        [call("a", "shell_call"), output("a")],
        [{"type": "function_call", "arguments": "{}"}],
        [thought()],
        [thought(), user()],
        [user(), "text"],
        [{"role": "user", "content": float("nan")}],
        [{"content": "nobody said this"}],
        [{"type": 7}],
    ],
)
def test_the_validator_is_strict(items: list[Any]) -> None:
    with pytest.raises(NotReplayable):
        assert_replayable(items)


def test_a_long_row_of_reasoning_items_is_looked_at_once() -> None:
    class Counted(dict[str, object]):
        looks = 0

        def get(self, key: str, default: object = None) -> object:
            Counted.looks += 1
            return super().get(key, default)

    items = [Counted(type="reasoning") for _ in range(2_000)]
    assert len(find_unpaired(items)) == 2_000
    assert Counted.looks < 20_000
    assert drop_unpaired([*items, {"role": "assistant", "content": "so"}])[-1]["content"] == "so"
    assert len(group_into_units([*items, {"role": "assistant", "content": "so"}])) == 1
