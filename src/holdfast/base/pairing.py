"""Which items need each other: a call its output, an output its call, a reasoning item what it led to.

Providers refuse a history in which one of a pair is missing. Stored items are never edited for that:
:func:`paired` is a view of them that any provider accepts.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.base.items import Item

# The output's type and the field by which it names its call; a call not listed carries its own result.
OUTPUT_OF: dict[str, str] = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "mcp_approval_request": "mcp_approval_response",
}
CALL_OF = {output: call for call, output in OUTPUT_OF.items()}


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
    open_calls: dict[tuple[str, Any], int] = {}
    found: dict[int, Unpaired] = {}
    for index, item in enumerate(items):
        kind = item.get("type")
        if kind in OUTPUT_OF:
            call = (kind, call_id(item))
            if call in open_calls:  # the same call again: only the later one can still be answered
                earlier = open_calls[call]
                found[earlier] = Unpaired(earlier, Problem.CALL_WITHOUT_OUTPUT, call_id(item))
            open_calls[call] = index
        elif kind in CALL_OF and open_calls.pop((CALL_OF[kind], call_id(item)), None) is None:
            found[index] = Unpaired(index, Problem.OUTPUT_WITHOUT_CALL, call_id(item))
    for (_, name), index in open_calls.items():
        found[index] = Unpaired(index, Problem.CALL_WITHOUT_OUTPUT, name)
    for index, item in enumerate(items):
        if item.get("type") == "reasoning" and not _led_somewhere(items, index, found):
            found[index] = Unpaired(index, Problem.REASONING_WITHOUT_RESULT)
    return [found[index] for index in sorted(found)]


def paired(items: Sequence[Item]) -> list[Item]:
    """The items without those that lack their counterpart: what a model may be shown."""
    dropped = {problem.index for problem in unpaired(items)}
    return [item for index, item in enumerate(items) if index not in dropped] if dropped else list(items)


def call_id(item: Item) -> str | None:
    """The id that ties a call and its output together, whatever the provider calls it."""
    kind = item.get("type")
    if kind == "mcp_approval_request":
        return item.get("id")
    if kind == "mcp_approval_response":
        return item.get("approval_request_id")
    return item.get("call_id")


def pair_groups(items: Sequence[Item]) -> list[int]:
    """For each item the index of the last item it belongs with (itself when it stands alone).

    A cut after index ``i`` separates nothing when no group of an item at or before ``i`` ends after it.
    """
    ends = list(range(len(items)))
    opened: dict[tuple[str, Any], int] = {}
    for index, item in enumerate(items):
        kind = item.get("type")
        if kind in OUTPUT_OF:
            opened[(kind, call_id(item))] = index
        elif kind in CALL_OF:
            start = opened.pop((CALL_OF[kind], call_id(item)), None)
            if start is not None:
                ends[start] = index
    for index in range(len(items) - 2, -1, -1):
        if items[index].get("type") == "reasoning" and _made_by_model(items[index + 1]):
            ends[index] = max(ends[index], ends[index + 1])
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


def _led_somewhere(items: Sequence[Item], index: int, dropped: dict[int, Unpaired]) -> bool:
    """Whether a reasoning item is followed, within its own answer, by something that stays."""
    after = index + 1
    while after < len(items) and items[after].get("type") == "reasoning":
        after += 1
    while after < len(items) and _made_by_model(items[after]) and items[after].get("type") != "reasoning":
        if after not in dropped:
            return True
        after += 1
    return False


def _made_by_model(item: Item) -> bool:
    kind = item.get("type", "message")
    if kind == "message":
        return item.get("role") == "assistant"
    return kind == "reasoning" or kind.endswith("_call") or kind in ("mcp_approval_request", "compaction")
