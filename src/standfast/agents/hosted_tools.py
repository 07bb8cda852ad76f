"""Tools that the provider runs: declarations only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, Required, TypeAlias

from typing_extensions import TypedDict

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
        """The name of this kind of tool."""
        return "file_search"


class WebSearchToolImageSettings(TypedDict, total=False):
    """How images are searched: how many, and whether with captions."""

    max_results: int
    caption: bool


@dataclass
class WebSearchTool:
    """Searches the web."""

    user_location: Any | None = None
    filters: Any | None = None
    search_context_size: Literal["low", "medium", "high"] = "medium"
    external_web_access: bool | None = None
    search_content_types: list[Literal["text", "image"]] | None = None
    image_settings: WebSearchToolImageSettings | None = None

    @property
    def name(self) -> str:
        """The name of this kind of tool."""
        return "web_search"


@dataclass
class CodeInterpreterTool:
    """Runs code in a container at the provider."""

    tool_config: Any

    @property
    def name(self) -> str:
        """The name of this kind of tool."""
        return "code_interpreter"


@dataclass
class MCPToolApprovalRequest:
    """A request to approve a call of a hosted MCP server; ``data`` is the request as the provider sent it."""

    ctx_wrapper: "RunContextWrapper[Any]"
    data: Any


class MCPToolApprovalFunctionResult(TypedDict):
    """Whether a call of a hosted MCP tool is approved, and why not."""

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
        """The name of this kind of tool."""
        return "hosted_mcp"


class ImageGenerationToolConfig(TypedDict, total=False):
    """The image generation tool in the format of the Responses API."""

    type: Required[Literal["image_generation"]]
    action: Literal["generate", "edit", "auto"]
    background: Literal["transparent", "opaque", "auto"]
    input_fidelity: Literal["high", "low"] | None
    input_image_mask: dict[str, str]
    model: str
    moderation: Literal["auto", "low"]
    output_compression: int
    output_format: Literal["png", "webp", "jpeg"]
    partial_images: int
    quality: Literal["low", "medium", "high", "xhigh", "max", "auto"]
    size: str


@dataclass
class ImageGenerationTool:
    """Generates images."""

    tool_config: ImageGenerationToolConfig

    @property
    def name(self) -> str:
        """The name of this kind of tool."""
        return "image_generation"


@dataclass
class ToolSearchTool:
    """Lets the model find deferred tools. Without it, it is added for an agent that has such tools."""

    description: str | None = None
    execution: Literal["server", "client"] | None = None
    parameters: object | None = None

    @property
    def name(self) -> str:
        """The name of this kind of tool."""
        return "tool_search"


@dataclass
class ProgrammaticToolCallingTool:
    """Lets the model call tools from programs that the provider runs; tools allow it by ``allowed_callers``."""

    @property
    def name(self) -> str:
        """The name of this kind of tool."""
        return "programmatic_tool_calling"


HostedTool: TypeAlias = (
    FileSearchTool
    | WebSearchTool
    | CodeInterpreterTool
    | HostedMCPTool
    | ImageGenerationTool
    | ToolSearchTool
    | ProgrammaticToolCallingTool
)
