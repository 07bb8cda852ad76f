"""The exceptions of MCP servers.

MCPServerError
├── MCPUnavailable      the server cannot be started or reached; the request did not arrive (also a UserError)
├── MCPCallUncertain    no response arrived; it is unknown whether the request had an effect
├── MCPCallRefused      the server answered with an error
└── MCPInvalidResponse  the response violates the protocol; the request may have had an effect
UserError
└── MCPNotConnected     the server was used before ``connect()`` or after ``cleanup()``
"""

from standfast.agents.errors import AgentsException, UserError
from standfast.base.log import hide_secrets

DEFAULT_HINT = "check that it is running and that its parameters are correct"


class MCPServerError(AgentsException):
    """A request to a server failed. ``tool_name`` is set if the request was a tool call."""

    code = "mcp"

    def __init__(self, message: str, *, server_name: str, tool_name: str | None = None) -> None:
        message = hide_secrets(message)
        super().__init__(message)
        self.message, self.server_name, self.tool_name = message, server_name, tool_name


class MCPUnavailable(MCPServerError, UserError):
    """The server cannot be started or reached. The request did not arrive, so it is safe to retry."""

    code = "mcp-unavailable"

    def __init__(
        self, server_name: str, reason: str, *, hint: str = DEFAULT_HINT, tool_name: str | None = None
    ) -> None:
        text = f"the MCP server {server_name!r} cannot be reached: {reason}; {hint}"
        super().__init__(text, server_name=server_name, tool_name=tool_name)


class MCPCallUncertain(MCPServerError):
    """The server ended, timed out or disconnected before it answered. The request may have had an effect."""

    code = "mcp-uncertain"

    def __init__(self, server_name: str, request: str, outcome: str, *, tool_name: str | None = None) -> None:
        advice = "it is safe to retry"
        if tool_name is not None:
            advice = "the call may have had an effect: check whether it did before you retry"
        text = f"the MCP server {server_name!r} was asked to {request} and {outcome}; {advice}"
        super().__init__(text, server_name=server_name, tool_name=tool_name)


class MCPCallRefused(MCPServerError):
    """The server answered with an MCP error."""

    code = "mcp-refused"

    def __init__(self, server_name: str, request: str, reason: str, *, tool_name: str | None = None) -> None:
        text = f"the MCP server {server_name!r} was asked to {request} and answered with an error: {reason}"
        super().__init__(text, server_name=server_name, tool_name=tool_name)


class MCPInvalidResponse(MCPServerError):
    """The server's response violates the protocol. The request may have had an effect."""

    code = "mcp-answer-broken"

    def __init__(self, server_name: str, request: str, reason: str, *, tool_name: str | None = None) -> None:
        effect = "" if tool_name is None else "; the call may have had an effect"
        text = f"the MCP server {server_name!r} was asked to {request} and sent an invalid response: {reason}{effect}"
        super().__init__(text, server_name=server_name, tool_name=tool_name)


class MCPNotConnected(UserError):
    """The server was used before ``connect()`` or after ``cleanup()``."""

    code = "mcp-not-connected"

    def __init__(self, server_name: str) -> None:
        super().__init__(
            f"the MCP server {server_name!r} is not connected: use it inside `async with server:`, "
            "or between connect() and cleanup()"
        )
        self.server_name = server_name
