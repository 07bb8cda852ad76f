"""MCP servers that run as child processes and communicate over standard input and output."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

from standfast.agents.errors import InvalidDeclaration
from standfast.agents.guardrails import ToolInputGuardrail, ToolOutputGuardrail
from standfast.agents.types import ToolErrorFunction
from standfast.mcp._client.requests import DEFAULT_MAX_MESSAGE_BYTES, ClientSessionServer
from standfast.mcp._client.tools import DEFAULT_MAX_OUTPUT_CHARS, MCPToolCustomDataExtractor, MCPToolMetaResolver
from standfast.mcp.interface import UNSET
from standfast.mcp.permissions import RequireApprovalSetting, ToolFilter

if TYPE_CHECKING:
    from mcp.client.session import MessageHandlerFnT

    from standfast.mcp._client.stdio_transport import ServerProcess


class MCPServerStdioParams(TypedDict):
    """How to start the server. Its environment consists of a few safe inherited variables and those in ``env``."""

    command: str
    """The program to start."""
    args: NotRequired[list[str]]
    """Its arguments."""
    env: NotRequired[dict[str, str]]
    """Variables of its environment."""
    cwd: NotRequired[str | Path]
    """The directory in which it is started."""
    encoding: NotRequired[str]
    """The encoding of messages, by default UTF-8."""
    encoding_error_handler: NotRequired[Literal["strict", "ignore", "replace"]]
    """What happens to bytes that the encoding does not allow, by default ``strict``."""


class MCPServerStdio(ClientSessionServer):
    """A server in a child process.

    ``cleanup()`` ends the process: first by closing its standard input, then by signals. Its standard error is logged
    by the logger ``standfast.mcp`` at level DEBUG; errors contain the end of it.
    """

    def __init__(
        self,
        params: MCPServerStdioParams,
        cache_tools_list: bool = False,
        name: str | None = None,
        client_session_timeout_seconds: float | None = 5,
        tool_filter: ToolFilter = None,
        use_structured_content: bool = False,
        max_retry_attempts: int = 0,
        retry_backoff_seconds_base: float = 1.0,
        message_handler: "MessageHandlerFnT | None" = None,
        require_approval: RequireApprovalSetting = None,
        failure_error_function: ToolErrorFunction | None = UNSET,
        tool_meta_resolver: MCPToolMetaResolver | None = None,
        custom_data_extractor: MCPToolCustomDataExtractor | None = None,
        retry_backoff_seconds_max: float | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_output_chars: int = DEFAULT_MAX_OUTPUT_CHARS,
        *,
        tool_input_guardrails: list[ToolInputGuardrail[Any]] | None = None,
        tool_output_guardrails: list[ToolOutputGuardrail[Any]] | None = None,
        max_list_pages: int | None = None,
    ) -> None:
        if not isinstance(params, dict) or not isinstance(params.get("command"), str):
            raise InvalidDeclaration("MCPServerStdio", "params must be a dict with the key 'command'")
        _check_encoding(params.get("encoding", "utf-8"))
        self.params = params
        self._name = name or f"stdio: {params['command']}"
        self._process: ServerProcess | None = None
        self.hint = f"check that {params['command']!r} can be run and is an MCP server"
        super().__init__(
            cache_tools_list,
            client_session_timeout_seconds,
            tool_filter,
            use_structured_content,
            max_retry_attempts,
            retry_backoff_seconds_base,
            message_handler,
            require_approval,
            failure_error_function,
            tool_meta_resolver,
            custom_data_extractor,
            retry_backoff_seconds_max,
            max_message_bytes,
            max_output_chars,
            tool_input_guardrails=tool_input_guardrails,
            tool_output_guardrails=tool_output_guardrails,
            max_list_pages=max_list_pages,
        )

    @property
    def name(self) -> str:
        return self._name

    def create_streams(self) -> AbstractAsyncContextManager[Any]:
        from standfast.mcp._client.stdio_transport import ServerProcess

        params = self.params
        self._process = ServerProcess(
            self.name,
            [params["command"], *params.get("args", [])],
            env=params.get("env") or {},
            cwd=params.get("cwd"),
            encoding=params.get("encoding", "utf-8"),
            errors=params.get("encoding_error_handler", "strict"),
            max_message_bytes=self.max_message_bytes,
        )
        return self._process.open_streams()

    async def describe_exit(self) -> str:
        """Return how the server's process ended and what it wrote last, an empty text while it runs."""
        return "" if self._process is None else await self._process.describe_exit()


def _check_encoding(encoding: str) -> None:
    """Raise unless a line feed is encoded as in ASCII, because messages are separated by line feeds."""
    try:
        is_valid = "\n".encode(encoding) == b"\n"
    except LookupError:
        is_valid = False
    if not is_valid:
        raise InvalidDeclaration(
            "MCPServerStdio", f"encoding must be utf-8 or another superset of ASCII, got {encoding!r}"
        )
