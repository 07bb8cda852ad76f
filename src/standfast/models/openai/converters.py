"""The conversions of the models as classes, for programs that call other servers themselves."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from standfast.agents.handoffs import Handoff
from standfast.agents.model_settings import ModelSettings
from standfast.agents.output import AgentOutputSchemaBase
from standfast.agents.tools import Tool
from standfast.base.items import Item
from standfast.models.interface import wrap_attributes
from standfast.models.openai.chat_conversion import (
    ShouldReplayReasoningContent,
    convert_content,
    to_chat_messages,
    to_chat_response_format,
    to_chat_tool_choice,
    to_chat_tools,
)
from standfast.models.openai.chat_output import ToolNameResolver, items_from_choice
from standfast.models.openai.client import to_typed_item
from standfast.models.openai.response_tools import to_response_tool_choice, to_response_tools
from standfast.models.openai.responses import build_include, build_text_config


def _or_omit(value: Any) -> Any:
    from openai import omit

    return omit if value is None else value


class ChatConverter:
    """Converts items, tools and answers between the Responses API and the Chat Completions API."""

    @classmethod
    def convert_tool_choice(cls, tool_choice: Any) -> Any:
        return _or_omit(to_chat_tool_choice(tool_choice))

    @classmethod
    def convert_response_format(cls, final_output_schema: AgentOutputSchemaBase | None) -> Any:
        return _or_omit(to_chat_response_format(final_output_schema))

    @classmethod
    def message_to_output_items(
        cls, message: Any, provider_data: Item | None = None, strict_feature_validation: bool = False
    ) -> list[Any]:
        """Return the reasoning, text and calls in a message of the model as items."""
        items = items_from_choice(wrap_attributes({"message": message}), ToolNameResolver([]))
        added = {} if provider_data is None else {"provider_data": provider_data}
        return [to_typed_item({**item, **added}) for item in items]

    @classmethod
    def extract_all_content(cls, content: Any) -> Any:
        """Return the content of a message as parts of the Chat Completions API."""
        return convert_content(content, "content")

    @classmethod
    def extract_text_content(cls, content: Any) -> Any:
        """Return the parts of a content that are text."""
        parts = cls.extract_all_content(content)
        return parts if isinstance(parts, str) else [part for part in parts if part["type"] == "text"]

    @classmethod
    def items_to_messages(
        cls,
        items: str | Iterable[Item],
        model: str | None = None,
        preserve_thinking_blocks: bool = False,
        preserve_tool_output_all_content: bool = False,
        base_url: str | None = None,
        should_replay_reasoning_content: ShouldReplayReasoningContent | None = None,
        strict_feature_validation: bool = False,
    ) -> list[Item]:
        """Return a conversation as messages."""
        return to_chat_messages(
            None,
            items,
            model=model or "",
            base_url=base_url,
            strict=strict_feature_validation,
            should_replay=should_replay_reasoning_content,
            replay_provider_data=preserve_thinking_blocks,
        )

    @classmethod
    def tool_to_openai(cls, tool: Tool) -> Item:
        return to_chat_tools([tool], [])[0]

    @classmethod
    def convert_handoff_tool(cls, handoff: Handoff[Any, Any]) -> Item:
        return to_chat_tools([], [handoff])[0]


@dataclass
class ConvertedTools:
    """Tools in the format of the Responses API, and what a request with them includes in its response."""

    tools: list[Any]
    includes: list[Any]


class ResponsesConverter:
    """Converts tools, their choice and the output format to the Responses API."""

    @classmethod
    def convert_tool_choice(
        cls,
        tool_choice: Any,
        *,
        tools: Sequence[Tool] | None = None,
        handoffs: Sequence[Handoff[Any, Any]] | None = None,
        model: str | None = None,
    ) -> Any:
        return _or_omit(to_response_tool_choice(tool_choice, tools or (), model=model))

    @classmethod
    def get_response_format(cls, output_schema: AgentOutputSchemaBase | None) -> Any:
        return _or_omit(build_text_config(output_schema, None))

    @classmethod
    def convert_tools(
        cls,
        tools: list[Tool],
        handoffs: list[Handoff[Any, Any]],
        *,
        allow_opaque_tool_search_surface: bool = False,
        model: str | None = None,
        tool_choice: Any = None,
    ) -> ConvertedTools:
        """Return the tools and handoffs in the format of the API."""
        included = build_include(ModelSettings(), tools) or []
        return ConvertedTools(to_response_tools(tools, handoffs, model=model), included)
