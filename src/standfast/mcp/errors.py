"""What can go wrong with an MCP server, as types.

MCPServerError
├── MCPUnavailable      it cannot be started or reached; the request did not get there
├── MCPCallUncertain    the answer did not come; whether the request had an effect is unknown
├── MCPCallRefused      it answered with an error of the protocol
└── MCPAnswerBroken     it answered with something that breaks the protocol; what was asked may have happened
UserError
└── MCPNotConnected     it was used before ``connect()`` or after ``cleanup()``
"""

from standfast.agents.errors import AgentsException, UserError

DEFAULT_HINT = "see that it is running and that its parameters are right"


class MCPServerError(AgentsException):
    """Something went wrong between standfast and a server. ``tool_name`` is set when a call was being made."""

    code = "mcp"

    def __init__(self, message: str, *, server_name: str, tool_name: str | None = None) -> None:
        super().__init__(message)
        self.message, self.server_name, self.tool_name = message, server_name, tool_name


class MCPUnavailable(MCPServerError):
    """The server cannot be started or reached. What was asked of it did not get there, so asking again is safe."""

    code = "mcp-unavailable"

    def __init__(
        self, server_name: str, reason: str, *, hint: str = DEFAULT_HINT, tool_name: str | None = None
    ) -> None:
        text = f"the MCP server {server_name!r} cannot be reached: {reason}; {hint}"
        super().__init__(text, server_name=server_name, tool_name=tool_name)


class MCPCallUncertain(MCPServerError):
    """The server ended, went silent or lost the connection before it answered. The request may have had an effect."""

    code = "mcp-uncertain"

    def __init__(self, server_name: str, request: str, outcome: str, *, tool_name: str | None = None) -> None:
        advice = (
            "it may be asked again" if tool_name is None else "whether it did is unknown: look before you ask again"
        )
        text = f"the MCP server {server_name!r} was asked to {request} and {outcome}; {advice}"
        super().__init__(text, server_name=server_name, tool_name=tool_name)


class MCPCallRefused(MCPServerError):
    """The server answered with an error of the protocol."""

    code = "mcp-refused"

    def __init__(self, server_name: str, request: str, reason: str, *, tool_name: str | None = None) -> None:
        text = f"the MCP server {server_name!r} was asked to {request} and refused: {reason}"
        super().__init__(text, server_name=server_name, tool_name=tool_name)


class MCPInvalidResponse(MCPServerError):
    """The server answered, but with something that breaks the protocol. The request may have had an effect."""

    code = "mcp-answer-broken"

    def __init__(self, server_name: str, request: str, reason: str, *, tool_name: str | None = None) -> None:
        effect = "" if tool_name is None else "; it may have had an effect"
        text = (
            f"the MCP server {server_name!r} was asked to {request} and gave an answer that breaks the protocol{effect}"
        )
        super().__init__(f"{text}: {reason}", server_name=server_name, tool_name=tool_name)


class MCPNotConnected(UserError):
    """The server was used before ``connect()`` or after ``cleanup()``."""

    code = "mcp-not-connected"

    def __init__(self, server_name: str) -> None:
        super().__init__(
            f"the MCP server {server_name!r} is not connected: use it inside `async with server:`, "
            "or between connect() and cleanup()"
        )
        self.server_name = server_name
