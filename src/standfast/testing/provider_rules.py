"""Check whether a strict provider would accept a list of items as input.

This shares no code with :mod:`standfast.base.item_pairs`, so that it can be used to test it.
"""

import json
from collections.abc import Sequence
from typing import Any

CALL_TYPE_BY_OUTPUT = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
    "computer_call_output": "computer_call",
    "local_shell_call_output": "local_shell_call",
    "shell_call_output": "shell_call",
    "apply_patch_call_output": "apply_patch_call",
    "tool_search_output": "tool_search_call",
    "program_output": "program",
    "mcp_approval_response": "mcp_approval_request",
}
CALL_TYPES = frozenset(CALL_TYPE_BY_OUTPUT.values())
# Tools that the provider runs itself: the item contains its result.
HOSTED_TYPES = frozenset(
    [
        "code_interpreter_call",
        "compaction",
        "file_search_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "web_search_call",
    ]
)


class NotReplayable(AssertionError):
    """A provider would reject these items; ``index`` is the position of the first invalid one."""

    def __init__(self, index: int, problem: str, item: Any) -> None:
        super().__init__(f"items[{index}]: {problem}: {item!r:.200}")
        self.index, self.problem = index, problem


def assert_replayable(items: Sequence[Any]) -> None:
    """Raise :class:`NotReplayable` if a call has no output, an output no call, or reasoning no following item."""
    open_calls: dict[tuple[str, str], int] = {}
    for index, item in enumerate(items):
        kind = get_item_type(index, item)
        if is_hosted_search(item, kind):
            continue
        if kind in CALL_TYPE_BY_OUTPUT:
            if open_calls.pop((CALL_TYPE_BY_OUTPUT[kind], get_call_id(index, item, kind)), None) is None:
                raise NotReplayable(index, "there is no call without output for this output", item)
        elif kind in CALL_TYPES:
            name = (kind, get_call_id(index, item, kind))
            if name in open_calls:
                raise NotReplayable(index, f"items[{open_calls[name]}] has the same id and no output yet", item)
            open_calls[name] = index
        elif kind == "reasoning" and not (index + 1 < len(items) and is_from_model(items[index + 1])):
            raise NotReplayable(index, "reasoning without the item that must follow it", item)
    for index in open_calls.values():
        raise NotReplayable(index, "this call has no output", items[index])


def get_item_type(index: int, item: Any) -> str:
    if not isinstance(item, dict):
        raise NotReplayable(index, "not an object", item)
    try:
        json.dumps(item, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotReplayable(index, f"not JSON ({error})", item) from None
    kind = item.get("type", "message")
    if not isinstance(kind, str):
        raise NotReplayable(index, "the type is not a string", item)
    if kind == "message" and item.get("role") not in ("user", "assistant", "system", "developer", "tool"):
        raise NotReplayable(index, "a message without a role", item)
    return kind


def get_call_id(index: int, item: dict[str, Any], kind: str) -> str:
    """Return the id that a call and its output share."""
    fields = {
        "mcp_approval_request": ["id"],
        "mcp_approval_response": ["approval_request_id"],
        "local_shell_call_output": ["call_id", "id"],
    }.get(kind, ["call_id"])
    for field in fields:
        value = item.get(field)
        if isinstance(value, str) and value:
            return value
    raise NotReplayable(index, f"{' or '.join(fields)} is missing", item)


def is_hosted_search(item: dict[str, Any], kind: str) -> bool:
    """Return whether the provider ran this tool search itself. Its two items have no call id and are independent."""
    return kind in ("tool_search_call", "tool_search_output") and item.get("call_id") is None


def is_from_model(item: Any) -> bool:
    kind = item.get("type", "message")
    return (
        (kind == "message" and item.get("role") == "assistant")
        or kind == "reasoning"
        or kind in HOSTED_TYPES
        or kind in CALL_TYPES
    )
