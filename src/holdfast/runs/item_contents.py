"""What items say, for programs and for the run itself."""

from collections.abc import Iterable
from typing import Any

from holdfast.agents.tool_refs import part_of
from holdfast.base.items import Item
from holdfast.runs.items import MessageOutputItem
from holdfast.toolcalls.output import output_item


class ItemHelpers:
    """Texts and outputs in items of a run."""

    @classmethod
    def extract_last_content(cls, message: Any) -> str:
        """The text or the refusal at the end of a message; nothing when there is neither."""
        last = _last(message)
        return "" if last is None else part_of(last, "text") or part_of(last, "refusal") or ""

    @classmethod
    def extract_last_text(cls, message: Any) -> str | None:
        """The text at the end of a message, if it ends with one."""
        last = _last(message)
        return part_of(last, "text") if last is not None and part_of(last, "type") == "output_text" else None

    @classmethod
    def extract_text(cls, message: Any) -> str | None:
        """Every text of a message, one after the other."""
        return "".join(_parts(message, "output_text", "text")) or None

    @classmethod
    def extract_refusal(cls, message: Any) -> str | None:
        """What the model said instead of answering, if it refused."""
        return "".join(_parts(message, "refusal", "refusal")) or None

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
        item = output_item(part_of(tool_call, "call_id"), output, adapter=output_type_adapter)
        answered: Item = cls.copy_tool_call_caller(tool_call, item)
        return answered

    @classmethod
    def copy_tool_call_caller(cls, tool_call: Any, output_item: Any) -> Any:
        """The output with the note of who made the call, if there is one."""
        caller = part_of(tool_call, "caller")
        return output_item if caller is None else {**output_item, "caller": caller}


def _last(message: Any) -> Any:
    content = part_of(message, "content")
    return content[-1] if isinstance(content, list) and content and part_of(message, "type") == "message" else None


def _parts(message: Any, kind: str, name: str) -> list[str]:
    content = part_of(message, "content")
    if part_of(message, "type") != "message" or not isinstance(content, list):
        return []
    return [part_of(part, name) or "" for part in content if part_of(part, "type") == kind]
