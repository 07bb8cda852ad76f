"""Declarations of tools that the provider runs. Their fields are those of the provider's API."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict

from standfast.agents.types import MaybeAwaitable

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper


@dataclass
class FileSearchTool:
    """Searches the provider's vector stores."""

    vector_store_ids: list[str]
    max_num_results: int | None = None
    include_search_results: bool = False
    ranking_options: Any | None = None
    filters: Any | None = None

    @property
    def name(self) -> str:
        return "file_search"


@dataclass
class WebSearchTool:
    """Searches the web."""

    user_location: Any | None = None
    filters: Any | None = None
    search_context_size: Literal["low", "medium", "high"] = "medium"
    external_web_access: bool | None = None

    @property
    def name(self) -> str:
        return "web_search"


@dataclass
class CodeInterpreterTool:
    """Runs code in a container at the provider."""

    tool_config: Any

    @property
    def name(self) -> str:
        return "code_interpreter"


@dataclass
class MCPToolApprovalRequest:
    """A request to approve a call of a hosted MCP server; ``data`` is the request as the provider sent it."""

    ctx_wrapper: "RunContextWrapper[Any]"
    data: Any


class MCPToolApprovalFunctionResult(TypedDict):
    approve: bool
    reason: NotRequired[str]


MCPToolApprovalFunction: TypeAlias = Callable[[MCPToolApprovalRequest], MaybeAwaitable[MCPToolApprovalFunctionResult]]


@dataclass
class HostedMCPTool:
    """The tools of an MCP server to which the provider connects.

    Without ``on_approval_request``, approval requests become interruptions of the run.
    """

    tool_config: Any
    on_approval_request: MCPToolApprovalFunction | None = None

    @property
    def name(self) -> str:
        return "hosted_mcp"


HostedTool: TypeAlias = FileSearchTool | WebSearchTool | CodeInterpreterTool | HostedMCPTool
