"""The events of a streamed run."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from standfast.models.interface import TResponseStreamEvent
from standfast.runs.core.state import EntryKind
from standfast.runs.items import RunItem

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
    "compaction_created",
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
    "compaction": "compaction_created",
    "input": "input_taken",
}
