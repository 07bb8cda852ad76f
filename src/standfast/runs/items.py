"""What a run has produced, item by item, as programs see it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeAlias

from typing_extensions import TypeVar

from standfast.agents.tool_identity import FunctionToolLookupKey, get_field
from standfast.agents.tools import ToolOrigin
from standfast.base.errors import StandfastError
from standfast.base.ids import new_id
from standfast.base.items import Item
from standfast.base.pairing import get_call_id as paired_by
from standfast.models.attribute_items import as_item
from standfast.tool_calls.output import make_output_item

T = TypeVar("T", default=Any)


@dataclass(eq=False)
class RunItemBase(Generic[T]):
    """One item: who produced it, and what it is in the provider's shape."""

    agent: Any
    raw_item: T

    def to_input_item(self) -> Item:
        """The item as input for a model."""
        return as_item(self.raw_item)

    def release_agent(self) -> None:
        """Let go of the agent, so that long-lived results do not keep it."""
        self.agent = None


@dataclass(eq=False)
class InputItem(RunItemBase[Any]):
    """Something that was said to a run that was already under way."""

    type: Literal["input_item"] = "input_item"
    input_id: str = field(default_factory=lambda: new_id("input"))


@dataclass(eq=False)
class MessageOutputItem(RunItemBase[Any]):
    type: Literal["message_output_item"] = "message_output_item"


@dataclass(eq=False)
class ReasoningItem(RunItemBase[Any]):
    type: Literal["reasoning_item"] = "reasoning_item"


@dataclass(eq=False)
class HandoffCallItem(RunItemBase[Any]):
    """The model wants another agent to take over."""

    type: Literal["handoff_call_item"] = "handoff_call_item"


@dataclass(eq=False)
class HandoffOutputItem(RunItemBase[Any]):
    """Another agent took over."""

    source_agent: Any
    target_agent: Any
    type: Literal["handoff_output_item"] = "handoff_output_item"

    def release_agent(self) -> None:
        self.agent = self.source_agent = self.target_agent = None


@dataclass(eq=False)
class ToolCallItem(RunItemBase[Any]):
    """The model wants a tool to be called, or the provider called one."""

    type: Literal["tool_call_item"] = "tool_call_item"
    description: str | None = None
    title: str | None = None
    tool_origin: ToolOrigin | None = None

    @property
    def tool_name(self) -> str | None:
        name, kind = get_field(self.raw_item, "name"), get_field(self.raw_item, "type")
        return name if isinstance(name, str) else kind if isinstance(kind, str) else None

    @property
    def call_id(self) -> str | None:
        found: str | None = get_field(self.raw_item, "call_id") or get_field(self.raw_item, "id")
        return found


@dataclass(eq=False)
class ToolCallOutputItem(RunItemBase[Any]):
    """What a tool returned: ``output`` is its own value, ``raw_item`` what the model is told."""

    output: Any
    type: Literal["tool_call_output_item"] = "tool_call_output_item"
    tool_origin: ToolOrigin | None = None
    custom_data: dict[str, Any] | None = None

    @property
    def call_id(self) -> str | None:
        found: str | None = get_field(self.raw_item, "call_id")
        return found


@dataclass(eq=False)
class ToolSearchCallItem(RunItemBase[Any]):
    type: Literal["tool_search_call_item"] = "tool_search_call_item"


@dataclass(eq=False)
class ToolSearchOutputItem(RunItemBase[Any]):
    type: Literal["tool_search_output_item"] = "tool_search_output_item"


@dataclass(eq=False)
class MCPListToolsItem(RunItemBase[Any]):
    type: Literal["mcp_list_tools_item"] = "mcp_list_tools_item"


@dataclass(eq=False)
class MCPApprovalRequestItem(RunItemBase[Any]):
    type: Literal["mcp_approval_request_item"] = "mcp_approval_request_item"


@dataclass(eq=False)
class MCPApprovalResponseItem(RunItemBase[Any]):
    type: Literal["mcp_approval_response_item"] = "mcp_approval_response_item"


@dataclass(eq=False)
class CompactionItem(RunItemBase[Any]):
    """An earlier part of the conversation, shortened by the provider."""

    type: Literal["compaction_item"] = "compaction_item"


@dataclass(eq=False)
class ToolApprovalItem(RunItemBase[Any]):
    """A call that a person has to decide about.

    ``route`` are the ids of the calls that lead to the nested run which asks, outermost first. ``uncertain`` is set
    when the call may have been made already, by a process that died.
    """

    tool_name: str | None = None
    type: Literal["tool_approval_item"] = "tool_approval_item"
    tool_namespace: str | None = None
    tool_origin: ToolOrigin | None = None
    tool_lookup_key: FunctionToolLookupKey | None = field(default=None, kw_only=True)
    agent_path: str | None = field(default=None, kw_only=True)
    route: tuple[str, ...] = field(default=(), kw_only=True)
    uncertain: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.tool_name = self.tool_name or get_field(self.raw_item, "name")
        self.tool_namespace = self.tool_namespace or get_field(self.raw_item, "namespace")

    @property
    def name(self) -> str | None:
        return self.tool_name

    @property
    def qualified_name(self) -> str | None:
        return f"{self.tool_namespace}.{self.tool_name}" if self.tool_namespace else self.tool_name

    @property
    def arguments(self) -> str | None:
        """What the model wants to call the tool with, as it said it."""
        given = get_field(self.raw_item, "arguments")
        return given if isinstance(given, str) else None

    @property
    def call_id(self) -> str | None:
        """The id of the call, as the provider gave it."""
        raw = self.raw_item
        return paired_by(raw if isinstance(raw, dict) else as_item(raw))

    def to_input_item(self) -> Item:
        raise StandfastError("a question to a person is no input for a model")


RunItem: TypeAlias = (
    InputItem
    | MessageOutputItem
    | ToolSearchCallItem
    | ToolSearchOutputItem
    | HandoffCallItem
    | HandoffOutputItem
    | ToolCallItem
    | ToolCallOutputItem
    | ReasoningItem
    | MCPListToolsItem
    | MCPApprovalRequestItem
    | MCPApprovalResponseItem
    | CompactionItem
    | ToolApprovalItem
)


class ItemTypes:
    """Which class shows an entry of which kind."""

    by_kind: ClassVar[dict[str, type[RunItemBase[Any]]]] = {
        "message": MessageOutputItem,
        "reasoning": ReasoningItem,
        "handoff": HandoffCallItem,
        "search": ToolSearchCallItem,
        "found": ToolSearchOutputItem,
        "tools_listed": MCPListToolsItem,
        "approval_asked": MCPApprovalRequestItem,
        "approval_answer": MCPApprovalResponseItem,
        "compaction": CompactionItem,
    }


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
