"""Which items need each other: a call its output, an output its call, a reasoning item what it led to.

Providers refuse a history in which one of a pair is missing. Stored items are never edited for that:
:func:`paired` is a view of them that any provider accepts.
"""

from collections.abc import Container, Sequence
from enum import StrEnum

import msgspec

from standfast.base.items import Item

# The output's type for each call; a call not listed carries its own result.
OUTPUT_TYPE_BY_CALL_TYPE: dict[str, str] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "tool_search_call": "tool_search_output",
    "program": "program_output",
    "mcp_approval_request": "mcp_approval_response",
}
CALL_TYPE_BY_OUTPUT_TYPE = {output: call for call, output in OUTPUT_TYPE_BY_CALL_TYPE.items()}
_MODEL_ITEM_TYPES = frozenset(["reasoning", "compaction", "mcp_list_tools", *OUTPUT_TYPE_BY_CALL_TYPE])


class PairingProblem(StrEnum):
    CALL_WITHOUT_OUTPUT = "call-without-output"
    OUTPUT_WITHOUT_CALL = "output-without-call"
    REASONING_WITHOUT_RESULT = "reasoning-without-result"


class UnpairedItem(msgspec.Struct, frozen=True):
    """One item that a strict provider would refuse, by its index in the list that was looked at."""

    index: int
    problem: PairingProblem
    call_id: str | None = None


def find_unpaired(items: Sequence[Item]) -> list[UnpairedItem]:
    """Every item that lacks its counterpart, in order."""
    found = _find_unmatched_calls(items)
    for index, result in _find_reasoning_results(items, found).items():
        if result is None:
            found[index] = UnpairedItem(index, PairingProblem.REASONING_WITHOUT_RESULT)
    return [found[index] for index in sorted(found)]


def drop_unpaired(items: Sequence[Item]) -> list[Item]:
    """The items without those that lack their counterpart: what a model may be shown."""
    dropped = {problem.index for problem in find_unpaired(items)}
    return [item for index, item in enumerate(items) if index not in dropped] if dropped else list(items)


def get_item_type(item: Item) -> str:
    """The type of an item, ``message`` when it has none, and nothing when it is no type at all."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else "message" if kind is None else ""


def get_call_id(item: Item) -> str | None:
    """The id that ties a call and its output together, whatever the provider calls it."""
    kind = get_item_type(item)
    if kind == "mcp_approval_request":
        name = item.get("id")
    elif kind == "mcp_approval_response":
        name = item.get("approval_request_id")
    else:
        name = item.get("call_id")
        if name is None and kind == "local_shell_call_output":
            name = item.get("id")
    return name if isinstance(name, str) and name else None


def find_pair_ends(items: Sequence[Item]) -> list[int]:
    """For each item the index of the last item it belongs with (itself when it stands alone).

    A cut after index ``i`` separates nothing when no group of an item at or before ``i`` ends after it.
    """
    ends = list(range(len(items)))
    opened: dict[tuple[str, str], int] = {}
    for index, item in enumerate(items):
        kind, name = get_item_type(item), get_call_id(item)
        if kind in OUTPUT_TYPE_BY_CALL_TYPE and name is not None:
            opened[kind, name] = index
        elif kind in CALL_TYPE_BY_OUTPUT_TYPE and name is not None:
            start = opened.pop((CALL_TYPE_BY_OUTPUT_TYPE[kind], name), None)
            if start is not None:
                ends[start] = index
    for index, result in _find_reasoning_results(items, _find_unmatched_calls(items)).items():
        if result is not None:
            ends[index] = ends[result]
    return ends


def group_into_units(items: Sequence[Item]) -> list[range]:
    """The stretches that must stay whole, in order: every item is in one, and most stand alone."""
    found, start, needed = [], 0, -1
    for index, end in enumerate(find_pair_ends(items)):
        needed = max(needed, end)
        if needed <= index:
            found.append(range(start, index + 1))
            start = index + 1
    return found


def _find_unmatched_calls(items: Sequence[Item]) -> dict[int, UnpairedItem]:
    """The calls without an output and the outputs without a call, by index."""
    open_calls: dict[tuple[str, str], int] = {}
    found: dict[int, UnpairedItem] = {}
    for index, item in enumerate(items):
        kind, name = get_item_type(item), get_call_id(item)
        if kind in OUTPUT_TYPE_BY_CALL_TYPE:
            if name is None:
                if not _is_hosted_search(item):
                    found[index] = UnpairedItem(index, PairingProblem.CALL_WITHOUT_OUTPUT)
                continue
            if (kind, name) in open_calls:  # the same call again: only the later one can still be answered
                earlier = open_calls[kind, name]
                found[earlier] = UnpairedItem(earlier, PairingProblem.CALL_WITHOUT_OUTPUT, name)
            open_calls[kind, name] = index
        elif kind in CALL_TYPE_BY_OUTPUT_TYPE and not _is_hosted_search(item):
            answered = None if name is None else open_calls.pop((CALL_TYPE_BY_OUTPUT_TYPE[kind], name), None)
            if answered is None:
                found[index] = UnpairedItem(index, PairingProblem.OUTPUT_WITHOUT_CALL, name)
    for (_, name), index in open_calls.items():
        found[index] = UnpairedItem(index, PairingProblem.CALL_WITHOUT_OUTPUT, name)
    return found


def _is_hosted_search(item: Item) -> bool:
    """A tool search that the provider ran itself: its two items name no call."""
    return get_item_type(item) in ("tool_search_call", "tool_search_output") and item.get("call_id") is None


def _find_reasoning_results(items: Sequence[Item], dropped: Container[int]) -> dict[int, int | None]:
    """For each reasoning item what it led to: the first item after it, within its own answer, that stays.

    Reasoning items in a row lead to the same.
    """
    results: dict[int, int | None] = {}
    kept: int | None = None  # the first item from here to the end of the answer, or to the next reasoning, that stays
    led_to: int | None = None  # the same, from the end of the reasoning that stands here
    for index in range(len(items) - 1, -1, -1):
        if get_item_type(items[index]) == "reasoning":
            results[index], kept = led_to, None
            continue
        if not _is_model_item(items[index]):
            kept = None
        elif index not in dropped:
            kept = index
        led_to = kept
    return results


def _is_model_item(item: Item) -> bool:
    kind = get_item_type(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind in _MODEL_ITEM_TYPES or kind.endswith("_call")
