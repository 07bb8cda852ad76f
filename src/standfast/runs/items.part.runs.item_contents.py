"""What items say, for programs and for the run itself."""

from collections.abc import Iterable
from typing import Any

from holdfast.agents.tool_refs import get_field
from holdfast.base.items import Item
from holdfast.runs.items import MessageOutputItem
from holdfast.toolcalls.output import make_output_item


class ItemHelpers:
    """Texts and outputs in items of a run."""

    @classmethod
    def extract_last_content(cls, message: Any) -> str:
        """The text or the refusal at the end of a message; nothing when there is neither."""
        last = _get_last_part(message)
        return "" if last is None else get_field(last, "text") or get_field(last, "refusal") or ""

    @classmethod
    def extract_last_text(cls, message: Any) -> str | None:
        """The text at the end of a message, if it ends with one."""
        last = _get_last_part(message)
        return get_field(last, "text") if last is not None and get_field(last, "type") == "output_text" else None

    @classmethod
    def extract_text(cls, message: Any) -> str | None:
        """Every text of a message, one after the other."""
        return "".join(_collect_parts(message, "output_text", "text")) or None

    @classmethod
    def extract_refusal(cls, message: Any) -> str | None:
        """What the model said instead of answering, if it refused."""
        return "".join(_collect_parts(message, "refusal", "refusal")) or None

    @classmethod
    def input_to_new_input_list(cls, input: str | list[Item]) -> list[Item]:
        """The input as items; the list is the caller's."""
        return [{"content": input, "role": "user"}] if isinstance(input, str) else list(input)

    @classmethod
    def text_message_outputs(cls, items: Iterable[Any]) -> str:
        """The texts of all messages among the items."""
        return "".join(cls.text_message_output(item) for item in items if isinstance(item, MessageOutputItem))

    @classmethod
    def text_message_output(cls, message: MessageOutputItem) -> str:
        return cls.extract_text(message.raw_item) or ""

    @classmethod
    def tool_call_output_item(
        cls,
        tool_call: Any,
        output: Any,
        *,
        output_json_schema: dict[str, Any] | None = None,
        output_type_adapter: Any = None,
    ) -> Item:
        """What a model is told that a call returned."""
        item = make_output_item(get_field(tool_call, "call_id"), output, adapter=output_type_adapter)
        answered: Item = cls.copy_tool_call_caller(tool_call, item)
        return answered

    @classmethod
    def copy_tool_call_caller(cls, tool_call: Any, output_item: Any) -> Any:
        """The output with the note of who made the call, if there is one."""
        caller = get_field(tool_call, "caller")
        return output_item if caller is None else {**output_item, "caller": caller}


def _get_last_part(message: Any) -> Any:
    content = get_field(message, "content")
    return content[-1] if isinstance(content, list) and content and get_field(message, "type") == "message" else None


def _collect_parts(message: Any, kind: str, name: str) -> list[str]:
    content = get_field(message, "content")
    if get_field(message, "type") != "message" or not isinstance(content, list):
        return []
    return [get_field(part, name) or "" for part in content if get_field(part, "type") == kind]
