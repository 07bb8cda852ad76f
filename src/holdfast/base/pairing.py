"""Which items need each other: a call its output, an output its call, a reasoning item what it led to.

Providers refuse a history in which one of a pair is missing. Stored items are never edited for that:
:func:`paired` is a view of them that any provider accepts.
"""

from collections.abc import Container, Sequence
from enum import StrEnum

import msgspec

from holdfast.base.items import Item

# The output's type for each call; a call not listed carries its own result.
OUTPUT_OF: dict[str, str] = {
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
CALL_OF = {output: call for call, output in OUTPUT_OF.items()}
_MADE_BY_MODEL = frozenset(["reasoning", "compaction", "mcp_list_tools", *OUTPUT_OF])


class Problem(StrEnum):
    CALL_WITHOUT_OUTPUT = "call-without-output"
    OUTPUT_WITHOUT_CALL = "output-without-call"
    REASONING_WITHOUT_RESULT = "reasoning-without-result"


class Unpaired(msgspec.Struct, frozen=True):
    """One item that a strict provider would refuse, by its index in the list that was looked at."""

    index: int
    problem: Problem
    call_id: str | None = None


def unpaired(items: Sequence[Item]) -> list[Unpaired]:
    """Every item that lacks its counterpart, in order."""
    found = _halves(items)
    for index, result in _results(items, found).items():
        if result is None:
            found[index] = Unpaired(index, Problem.REASONING_WITHOUT_RESULT)
    return [found[index] for index in sorted(found)]


def paired(items: Sequence[Item]) -> list[Item]:
    """The items without those that lack their counterpart: what a model may be shown."""
    dropped = {problem.index for problem in unpaired(items)}
    return [item for index, item in enumerate(items) if index not in dropped] if dropped else list(items)


def kind_of(item: Item) -> str:
    """The type of an item, ``message`` when it has none, and nothing when it is no type at all."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else "message" if kind is None else ""


def call_id(item: Item) -> str | None:
    """The id that ties a call and its output together, whatever the provider calls it."""
    kind = kind_of(item)
    if kind == "mcp_approval_request":
        name = item.get("id")
    elif kind == "mcp_approval_response":
        name = item.get("approval_request_id")
    else:
        name = item.get("call_id")
        if name is None and kind == "local_shell_call_output":
            name = item.get("id")
    return name if isinstance(name, str) and name else None


def pair_groups(items: Sequence[Item]) -> list[int]:
    """For each item the index of the last item it belongs with (itself when it stands alone).

    A cut after index ``i`` separates nothing when no group of an item at or before ``i`` ends after it.
    """
    ends = list(range(len(items)))
    opened: dict[tuple[str, str], int] = {}
    for index, item in enumerate(items):
        kind, name = kind_of(item), call_id(item)
        if kind in OUTPUT_OF and name is not None:
            opened[kind, name] = index
        elif kind in CALL_OF and name is not None:
            start = opened.pop((CALL_OF[kind], name), None)
            if start is not None:
                ends[start] = index
    for index, result in _results(items, _halves(items)).items():
        if result is not None:
            ends[index] = ends[result]
    return ends


def units(items: Sequence[Item]) -> list[range]:
    """The stretches that must stay whole, in order: every item is in one, and most stand alone."""
    found, start, needed = [], 0, -1
    for index, end in enumerate(pair_groups(items)):
        needed = max(needed, end)
        if needed <= index:
            found.append(range(start, index + 1))
            start = index + 1
    return found


def _halves(items: Sequence[Item]) -> dict[int, Unpaired]:
    """The calls without an output and the outputs without a call, by index."""
    open_calls: dict[tuple[str, str], int] = {}
    found: dict[int, Unpaired] = {}
    for index, item in enumerate(items):
        kind, name = kind_of(item), call_id(item)
        if kind in OUTPUT_OF:
            if name is None:
                if not _hosted_search(item):
                    found[index] = Unpaired(index, Problem.CALL_WITHOUT_OUTPUT)
                continue
            if (kind, name) in open_calls:  # the same call again: only the later one can still be answered
                earlier = open_calls[kind, name]
                found[earlier] = Unpaired(earlier, Problem.CALL_WITHOUT_OUTPUT, name)
            open_calls[kind, name] = index
        elif kind in CALL_OF and not _hosted_search(item):
            answered = None if name is None else open_calls.pop((CALL_OF[kind], name), None)
            if answered is None:
                found[index] = Unpaired(index, Problem.OUTPUT_WITHOUT_CALL, name)
    for (_, name), index in open_calls.items():
        found[index] = Unpaired(index, Problem.CALL_WITHOUT_OUTPUT, name)
    return found


def _hosted_search(item: Item) -> bool:
    """A tool search that the provider ran itself: its two items name no call."""
    return kind_of(item) in ("tool_search_call", "tool_search_output") and item.get("call_id") is None


def _results(items: Sequence[Item], dropped: Container[int]) -> dict[int, int | None]:
    """For each reasoning item what it led to: the first item after it, within its own answer, that stays.

    Reasoning items in a row lead to the same.
    """
    results: dict[int, int | None] = {}
    kept: int | None = None  # the first item from here to the end of the answer, or to the next reasoning, that stays
    led_to: int | None = None  # the same, from the end of the reasoning that stands here
    for index in range(len(items) - 1, -1, -1):
        if kind_of(items[index]) == "reasoning":
            results[index], kept = led_to, None
            continue
        if not _made_by_model(items[index]):
            kept = None
        elif index not in dropped:
            kept = index
        led_to = kept
    return results


def _made_by_model(item: Item) -> bool:
    kind = kind_of(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind in _MADE_BY_MODEL or kind.endswith("_call")
