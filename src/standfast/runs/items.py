"""The items that a run produces, helpers to read their contents, and the events of a streamed run."""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeAlias

from typing_extensions import TypeVar

from standfast.agents.errors import AgentsException
from standfast.agents.tool_identity import FunctionToolLookupKey, get_field
from standfast.agents.tools import ToolOrigin
from standfast.base.ids import new_id
from standfast.base.item_pairs import get_call_id
from standfast.base.items import Item
from standfast.models.interface import TResponseStreamEvent, as_item, to_input_item
from standfast.runs.core.state import EntryKind
from standfast.tool_calls.output import make_output_item

T = TypeVar("T", default=Any)


@dataclass(eq=False)
class RunItemBase(Generic[T]):
    """One item: the agent that produced it, and the item in the format of the provider."""

    agent: Any
    raw_item: T

    def to_input_item(self) -> Item:
        """Return the item as input for a model."""
        return to_input_item(as_item(self.raw_item))

    def release_agent(self) -> None:
        """Keep only weak references to agents, so that a long-lived result does not keep them alive.

        They can be read as long as something else refers to them, and are ``None`` after that.
        """
        for name in ("agent", "source_agent", "target_agent"):
            if (agent := self.__dict__.pop(name, None)) is not None:
                self.__dict__.setdefault("_released", {})[name] = weakref.ref(agent)

    def __getattr__(self, name: str) -> Any:
        if name in ("agent", "source_agent", "target_agent"):
            reference = self.__dict__.get("_released", {}).get(name)
            return None if reference is None else reference()
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@dataclass(eq=False)
class InputItem(RunItemBase[Any]):
    """Input that was added to a run after it had started."""

    type: Literal["input_item"] = "input_item"
    input_id: str = field(default_factory=lambda: new_id("input"))


@dataclass(eq=False)
class MessageOutputItem(RunItemBase[Any]):
    """A message of the model."""

    type: Literal["message_output_item"] = "message_output_item"


@dataclass(eq=False)
class ReasoningItem(RunItemBase[Any]):
    """Reasoning of the model."""

    type: Literal["reasoning_item"] = "reasoning_item"


@dataclass(eq=False)
class HandoffCallItem(RunItemBase[Any]):
    """The model requested a handoff to another agent."""

    type: Literal["handoff_call_item"] = "handoff_call_item"


@dataclass(eq=False)
class HandoffOutputItem(RunItemBase[Any]):
    """The handoff was made."""

    source_agent: Any
    target_agent: Any
    type: Literal["handoff_output_item"] = "handoff_output_item"


@dataclass(eq=False)
class ToolCallItem(RunItemBase[Any]):
    """The model requested a tool call, or the provider made one."""

    type: Literal["tool_call_item"] = "tool_call_item"
    description: str | None = None
    title: str | None = None
    tool_origin: ToolOrigin | None = None

    @property
    def tool_name(self) -> str | None:
        """The name of the function; ``None`` for a call of a hosted tool that has no name."""
        name = get_field(self.raw_item, "name")
        return name if isinstance(name, str) else None

    @property
    def call_id(self) -> str | None:
        """The id of the call."""
        call_id: str | None = get_field(self.raw_item, "call_id") or get_field(self.raw_item, "id")
        return call_id


@dataclass(eq=False)
class ToolCallOutputItem(RunItemBase[Any]):
    """The output of a tool: ``output`` is the value it returned, ``raw_item`` what the model receives."""

    output: Any
    type: Literal["tool_call_output_item"] = "tool_call_output_item"
    tool_origin: ToolOrigin | None = None
    custom_data: dict[str, Any] | None = None

    @property
    def call_id(self) -> str | None:
        """The id of the call that has this output."""
        call_id: str | None = get_field(self.raw_item, "call_id")
        return call_id


@dataclass(eq=False)
class ToolSearchCallItem(RunItemBase[Any]):
    """A search of the model for tools."""

    type: Literal["tool_search_call_item"] = "tool_search_call_item"


@dataclass(eq=False)
class ToolSearchOutputItem(RunItemBase[Any]):
    """The tools that a search found."""

    type: Literal["tool_search_output_item"] = "tool_search_output_item"


@dataclass(eq=False)
class MCPListToolsItem(RunItemBase[Any]):
    """The tools that a hosted MCP server has listed."""

    type: Literal["mcp_list_tools_item"] = "mcp_list_tools_item"


@dataclass(eq=False)
class MCPApprovalRequestItem(RunItemBase[Any]):
    """A request to approve a call of a hosted MCP tool."""

    type: Literal["mcp_approval_request_item"] = "mcp_approval_request_item"


@dataclass(eq=False)
class MCPApprovalResponseItem(RunItemBase[Any]):
    """The answer to a request to approve a call of a hosted MCP tool."""

    type: Literal["mcp_approval_response_item"] = "mcp_approval_response_item"


@dataclass(eq=False)
class CompactionItem(RunItemBase[Any]):
    """An earlier part of the conversation, compacted by the provider."""

    type: Literal["compaction_item"] = "compaction_item"


@dataclass(eq=False)
class ToolApprovalItem(RunItemBase[Any]):
    """A tool call that waits for approval.

    ``route`` holds the ids of the calls that lead to the nested run with this call, outermost first. ``uncertain`` is
    set when the call may have been made already by a process that died.
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
        """The name of the tool."""
        return self.tool_name

    @property
    def qualified_name(self) -> str | None:
        """The name of the tool with its namespace."""
        if not self.tool_namespace or self.tool_namespace == self.tool_name:
            return self.tool_name
        return f"{self.tool_namespace}.{self.tool_name}"

    @property
    def arguments(self) -> str | None:
        """The arguments as the model wrote them; the input of a custom tool."""
        arguments = get_field(self.raw_item, "arguments") or get_field(self.raw_item, "input")
        return arguments if isinstance(arguments, str) else None

    @property
    def call_id(self) -> str | None:
        """The provider's id of the call."""
        raw = self.raw_item
        return get_call_id(raw if isinstance(raw, dict) else as_item(raw))

    def to_input_item(self) -> Item:
        raise AgentsException(
            "an approval item cannot be used as input for a model: decide about it and resume the run"
        )


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
    """The item class for each kind of transcript entry."""

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
    """Read texts and build outputs of items."""

    @classmethod
    def extract_last_content(cls, message: Any) -> str:
        """Return the text or the refusal at the end of a message, or an empty string."""
        last = _get_last_part(message)
        return "" if last is None else get_field(last, "text") or get_field(last, "refusal") or ""

    @classmethod
    def extract_last_text(cls, message: Any) -> str | None:
        """Return the text at the end of a message, or ``None`` if it does not end with one."""
        last = _get_last_part(message)
        return get_field(last, "text") if last is not None and get_field(last, "type") == "output_text" else None

    @classmethod
    def extract_text(cls, message: Any) -> str | None:
        """Return all texts of a message, concatenated, or ``None``."""
        return "".join(_collect_parts(message, "output_text", "text")) or None

    @classmethod
    def extract_refusal(cls, message: Any) -> str | None:
        """Return the refusal in a message, or ``None``."""
        return "".join(_collect_parts(message, "refusal", "refusal")) or None

    @classmethod
    def input_to_new_input_list(cls, input: str | list[Item]) -> list[Item]:
        """Return the input as a new list of items."""
        return [{"content": input, "role": "user"}] if isinstance(input, str) else list(input)

    @classmethod
    def text_message_outputs(cls, items: Iterable[Any]) -> str:
        """Return the texts of all messages among the items, concatenated."""
        return "".join(cls.text_message_output(item) for item in items if isinstance(item, MessageOutputItem))

    @classmethod
    def text_message_output(cls, message: MessageOutputItem) -> str:
        """Return the text of a message."""
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
        """Return the item that gives the output of a call to the model."""
        item = make_output_item(get_field(tool_call, "call_id"), output, adapter=output_type_adapter)
        output_item: Item = cls.copy_tool_call_caller(tool_call, item)
        return output_item

    @classmethod
    def copy_tool_call_caller(cls, tool_call: Any, output_item: Any) -> Any:
        """Return the output item with the ``caller`` of the call, if it has one."""
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


RunItemEventName: TypeAlias = Literal[
    "message_output_created",
    "handoff_requested",
    "handoff_occured",
    "tool_called",
    "tool_search_called",
    "tool_search_output_created",
    "tool_output",
    "reasoning_item_created",
    "mcp_approval_requested",
    "mcp_approval_response",
    "mcp_list_tools",
    "input_taken",
]


@dataclass
class RawResponsesStreamEvent:
    """An event of the model, unchanged."""

    data: TResponseStreamEvent
    type: Literal["raw_response_event"] = "raw_response_event"


@dataclass
class RunItemStreamEvent:
    """The run produced an item."""

    name: RunItemEventName
    item: RunItem
    type: Literal["run_item_stream_event"] = "run_item_stream_event"


@dataclass
class AgentUpdatedStreamEvent:
    """Another agent is active from now on."""

    new_agent: Any
    type: Literal["agent_updated_stream_event"] = "agent_updated_stream_event"


StreamEvent: TypeAlias = RawResponsesStreamEvent | RunItemStreamEvent | AgentUpdatedStreamEvent

# The misspelt "occured" is the public name of the event.
EVENT_NAMES: dict[EntryKind, RunItemEventName] = {
    "message": "message_output_created",
    "reasoning": "reasoning_item_created",
    "call": "tool_called",
    "output": "tool_output",
    "handoff": "handoff_requested",
    "handed": "handoff_occured",
    "search": "tool_search_called",
    "found": "tool_search_output_created",
    "tools_listed": "mcp_list_tools",
    "approval_asked": "mcp_approval_requested",
    "approval_answer": "mcp_approval_response",
    "input": "input_taken",
}
