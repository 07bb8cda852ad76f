"""Items that belong together, compared with a validator that shares no code with the implementation."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from factories.items import assistant_message, user_message
from standfast.base.item_pairs import PairingProblem, drop_unpaired, find_pair_ends, find_unpaired, group_into_units
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


def reasoning(item_id: str = "rs_1") -> dict[str, Any]:
    return {"type": "reasoning", "id": item_id, "summary": []}


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
def responses(draw: st.DrawFn, names: list[str]) -> list[dict[str, Any]]:
    """Generate a model response: reasoning, then calls or a message, then the outputs in any order."""
    items: list[dict[str, Any]] = [reasoning(f"rs_{n}") for n in range(draw(st.integers(0, 2)))]
    outputs = []
    for _ in range(draw(st.integers(0, 3))):
        name, kind = draw(st.sampled_from(names)), draw(kinds)
        if (name, kind) in [entry[:2] for entry in outputs]:
            continue
        items.append(call(name, kind))
        outputs.append((name, kind, output(name, kind)))
    if not outputs or draw(st.booleans()):
        items.append(draw(st.sampled_from([assistant_message(), *HOSTED])))
    return items + [entry[2] for entry in draw(st.permutations(outputs))]


@st.composite
def valid_histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Generate a history that every provider accepts. Call ids are used again in later turns."""
    items: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            items.append(user_message())
        items += draw(responses(["call_1", "call_2", "call_3"]))
    return items


@st.composite
def damaged_histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Generate a history in which items were lost, duplicated or exchanged."""
    items = draw(valid_histories())
    for _ in range(draw(st.integers(0, 6))):
        if not items:
            break
        index = draw(st.integers(0, len(items) - 1))
        match draw(st.sampled_from(["lose", "lose", "duplicate", "exchange", "cut"])):
            case "lose":
                del items[index]
            case "duplicate":
                items.insert(draw(st.integers(0, len(items))), items[index])
            case "exchange":
                other = draw(st.integers(0, len(items) - 1))
                items[index], items[other] = items[other], items[index]
            case "cut":
                items = items[index:] if draw(st.booleans()) else items[:index]
    return items


few_examples = settings(derandomize=True, deadline=None, max_examples=60)


@few_examples
@given(valid_histories())
def test_a_valid_history_is_unchanged(items: list[dict[str, Any]]) -> None:
    assert_replayable(items)
    assert find_unpaired(items) == []
    assert drop_unpaired(items) == items


@few_examples
@given(damaged_histories())
def test_a_damaged_history_is_valid_without_its_unpaired_items(items: list[dict[str, Any]]) -> None:
    assert_replayable(drop_unpaired(items))


@few_examples
@given(damaged_histories())
def test_dropping_unpaired_items_is_idempotent(items: list[dict[str, Any]]) -> None:
    once = drop_unpaired(items)
    assert drop_unpaired(once) == once


@few_examples
@given(damaged_histories())
def test_dropping_unpaired_items_keeps_the_order_and_never_edits_items(items: list[dict[str, Any]]) -> None:
    before = copy.deepcopy(items)
    remaining = drop_unpaired(items)
    assert items == before
    originals = iter(items)
    assert all(any(item is original for original in originals) for item in remaining)


@few_examples
@given(damaged_histories())
def test_find_unpaired_returns_exactly_the_dropped_items(items: list[dict[str, Any]]) -> None:
    dropped = [problem.index for problem in find_unpaired(items)]
    assert dropped == sorted(set(dropped))
    assert drop_unpaired(items) == [item for index, item in enumerate(items) if index not in dropped]


@few_examples
@given(damaged_histories())
def test_a_cut_between_groups_separates_no_pair(items: list[dict[str, Any]]) -> None:
    ends = find_pair_ends(items)
    assert len(ends) == len(items)
    for cut in range(len(items) + 1):
        if all(end < cut for end in ends[:cut]):
            assert drop_unpaired(items[:cut]) + drop_unpaired(items[cut:]) == drop_unpaired(items)


@few_examples
@given(valid_histories())
def test_a_cut_between_groups_of_a_valid_history_leaves_two_valid_histories(items: list[dict[str, Any]]) -> None:
    ends = find_pair_ends(items)
    for cut in range(len(items) + 1):
        if all(end < cut for end in ends[:cut]):
            assert_replayable(items[:cut])
            assert_replayable(items[cut:])


PROPERTIES = [
    test_a_damaged_history_is_valid_without_its_unpaired_items,
    test_dropping_unpaired_items_is_idempotent,
    test_dropping_unpaired_items_keeps_the_order_and_never_edits_items,
    test_find_unpaired_returns_exactly_the_dropped_items,
    test_a_cut_between_groups_separates_no_pair,
]


@pytest.mark.soak
@settings(deadline=None, max_examples=3000)
@given(damaged_histories())
def test_all_properties_hold_for_many_histories(items: list[dict[str, Any]]) -> None:
    for check in PROPERTIES:
        check.hypothesis.inner_test(items)


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
        ([reasoning()], [(0, PairingProblem.REASONING_WITHOUT_RESULT, None)]),
        ([reasoning(), user_message()], [(0, PairingProblem.REASONING_WITHOUT_RESULT, None)]),
        (
            [reasoning(), call("a"), user_message()],
            [(0, PairingProblem.REASONING_WITHOUT_RESULT, None), (1, PairingProblem.CALL_WITHOUT_OUTPUT, "a")],
        ),
        ([reasoning(), call("a"), assistant_message()], [(1, PairingProblem.CALL_WITHOUT_OUTPUT, "a")]),
        ([reasoning(), reasoning("rs_2"), assistant_message()], []),
        ([reasoning(), {"type": "mcp_list_tools", "tools": []}], []),
        ([call("a"), user_message(), output("a")], []),
        ([call("a"), output("a"), call("a"), output("a")], []),
    ],
)
def test_each_problem_is_reported(
    items: list[dict[str, Any]], problems: list[tuple[int, PairingProblem, str | None]]
) -> None:
    assert [(item.index, item.problem, item.call_id) for item in find_unpaired(items)] == problems


@pytest.mark.parametrize("name", [None, "", 7, [], {}])
@pytest.mark.parametrize("kind", [*PAIRS, "mcp_approval_request"])
def test_a_call_without_a_usable_id_cannot_be_paired(kind: str, name: Any) -> None:
    items = [user_message(), call(name, kind), output(name, kind), assistant_message()]
    assert_replayable(drop_unpaired(items))


@pytest.mark.parametrize("kind", [None, 7, [], {}, True])
def test_an_item_of_an_unknown_type_is_kept(kind: Any) -> None:
    unknown = {"type": kind, "call_id": "a"}
    items = [user_message(), unknown, call("a"), output("a")]
    assert drop_unpaired(items) == items
    assert find_pair_ends(items) == [0, 1, 3, 3]
    assert drop_unpaired([reasoning(), unknown]) == [unknown]


@pytest.mark.parametrize(
    "items",
    [
        [call("a")],
        [output("a")],
        [call("a"), call("a"), output("a"), output("a")],
        [call("a", "shell_call"), output("a")],
        [{"type": "function_call", "arguments": "{}"}],
        [reasoning()],
        [reasoning(), user_message()],
        [user_message(), "text"],
        [{"role": "user", "content": float("nan")}],
        [{"content": "no role"}],
        [{"type": 7}],
    ],
)
def test_the_validator_is_strict(items: list[Any]) -> None:
    with pytest.raises(NotReplayable):
        assert_replayable(items)


def test_the_cost_of_many_reasoning_items_is_linear() -> None:
    class CountingItem(dict[str, object]):
        reads = 0

        def get(self, key: str, default: object = None) -> object:
            CountingItem.reads += 1
            return super().get(key, default)

    items = [CountingItem(type="reasoning") for _ in range(2_000)]
    assert len(find_unpaired(items)) == 2_000
    assert CountingItem.reads < 20_000
    assert drop_unpaired([*items, {"role": "assistant", "content": "so"}])[-1]["content"] == "so"
    assert len(group_into_units([*items, {"role": "assistant", "content": "so"}])) == 1
