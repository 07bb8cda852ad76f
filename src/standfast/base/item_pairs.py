"""Items that belong together: a call and its output, a reasoning item and the item that follows from it.

Providers reject a history in which one of a pair is missing. Stored items are never edited because of that:
:func:`drop_unpaired` returns the items that any provider accepts.
"""

from collections.abc import Container, Sequence
from enum import StrEnum

import msgspec

from standfast.base.items import Item

# The type of the output for each type of call. A call that is not listed contains its own result.
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
    """An item that a strict provider would reject. ``index`` is its position in the checked list."""

    index: int
    problem: PairingProblem
    call_id: str | None = None


def find_unpaired(items: Sequence[Item]) -> list[UnpairedItem]:
    """Return the items that lack their counterpart, in order."""
    unpaired = _find_unmatched_calls(items)
    for index, result in _find_reasoning_results(items, unpaired).items():
        if result is None:
            unpaired[index] = UnpairedItem(index, PairingProblem.REASONING_WITHOUT_RESULT)
    return [unpaired[index] for index in sorted(unpaired)]


def drop_unpaired(items: Sequence[Item]) -> list[Item]:
    """Return the items without those that lack their counterpart, as input for a model."""
    dropped = {problem.index for problem in find_unpaired(items)}
    return [item for index, item in enumerate(items) if index not in dropped] if dropped else list(items)


def get_item_type(item: Item) -> str:
    """Return the type of an item: ``message`` if it has none, an empty string if the type is not a string."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else "message" if kind is None else ""


def get_call_id(item: Item) -> str | None:
    """Return the id that a call and its output share, whichever field the provider keeps it in."""
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
    """Return for each item the index of the last item of its group (its own index if it stands alone).

    The list can be cut after index ``i`` if no group that starts at or before ``i`` ends after it.
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
    """Split the items into the smallest ranges that may not be cut further, in order. Most contain a single item."""
    units, start, unit_end = [], 0, -1
    for index, end in enumerate(find_pair_ends(items)):
        unit_end = max(unit_end, end)
        if unit_end <= index:
            units.append(range(start, index + 1))
            start = index + 1
    return units


def _find_unmatched_calls(items: Sequence[Item]) -> dict[int, UnpairedItem]:
    """Return the calls without an output and the outputs without a call, by index."""
    open_calls: dict[tuple[str, str], int] = {}
    unmatched: dict[int, UnpairedItem] = {}
    for index, item in enumerate(items):
        kind, name = get_item_type(item), get_call_id(item)
        if kind in OUTPUT_TYPE_BY_CALL_TYPE:
            if name is None:
                if not _is_hosted_search(item):
                    unmatched[index] = UnpairedItem(index, PairingProblem.CALL_WITHOUT_OUTPUT)
                continue
            if (kind, name) in open_calls:  # a repeated call id: the output belongs to the later call
                earlier = open_calls[kind, name]
                unmatched[earlier] = UnpairedItem(earlier, PairingProblem.CALL_WITHOUT_OUTPUT, name)
            open_calls[kind, name] = index
        elif kind in CALL_TYPE_BY_OUTPUT_TYPE and not _is_hosted_search(item):
            answered = None if name is None else open_calls.pop((CALL_TYPE_BY_OUTPUT_TYPE[kind], name), None)
            if answered is None:
                unmatched[index] = UnpairedItem(index, PairingProblem.OUTPUT_WITHOUT_CALL, name)
    for (_, name), index in open_calls.items():
        unmatched[index] = UnpairedItem(index, PairingProblem.CALL_WITHOUT_OUTPUT, name)
    return unmatched


def _is_hosted_search(item: Item) -> bool:
    """Return True for a tool search that the provider ran itself: its two items have no call id."""
    return get_item_type(item) in ("tool_search_call", "tool_search_output") and item.get("call_id") is None


def _find_reasoning_results(items: Sequence[Item], dropped: Container[int]) -> dict[int, int | None]:
    """Return for each reasoning item the index of its result, or None.

    The result is the first item after it in the same response that is not in ``dropped``. Consecutive reasoning items
    share their result.
    """
    results: dict[int, int | None] = {}
    # Scanning backwards: the first remaining item before the end of the response or the next reasoning item ...
    next_item: int | None = None
    # ... and the same, seen from the end of a run of consecutive reasoning items.
    result: int | None = None
    for index in range(len(items) - 1, -1, -1):
        if get_item_type(items[index]) == "reasoning":
            results[index], next_item = result, None
            continue
        if not _is_model_item(items[index]):
            next_item = None
        elif index not in dropped:
            next_item = index
        result = next_item
    return results


def _is_model_item(item: Item) -> bool:
    kind = get_item_type(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind in _MODEL_ITEM_TYPES or kind.endswith("_call")


def drop_repeated_items(items: Sequence[Item]) -> list[Item]:
    """Return the items with each call, output and reasoning item once, as it was written last.

    A call or reasoning item stays at its first place and an output at its last, so that their order stays valid.
    """
    result: dict[tuple[str, str], Item] = {}
    for index, item in enumerate(items):
        kind = get_item_type(item) if isinstance(item, dict) else ""  # a filter may have made anything
        name = None if not kind else item.get("id") if kind == "reasoning" else get_call_id(item)
        known = kind == "reasoning" or kind in OUTPUT_TYPE_BY_CALL_TYPE or kind in CALL_TYPE_BY_OUTPUT_TYPE
        key = (kind, name) if known and isinstance(name, str) else ("", str(index))
        if kind in CALL_TYPE_BY_OUTPUT_TYPE:
            result.pop(key, None)
        result[key] = item
    return list(result.values())
