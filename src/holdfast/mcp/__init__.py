"""Tools of MCP servers for agents. Names are resolved on first use; the ``mcp`` library when a server is connected."""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "approval": ["LocalMCPApprovalCallable", "RequireApprovalSetting"],
    "errors": [
        "MCPAnswerBroken",
        "MCPCallRefused",
        "MCPCallUncertain",
        "MCPNotConnected",
        "MCPServerError",
        "MCPUnavailable",
    ],
    "filters": [
        "ToolFilter",
        "ToolFilterCallable",
        "ToolFilterContext",
        "ToolFilterStatic",
        "create_static_tool_filter",
    ],
    "http": ["MCPServerSse", "MCPServerSseParams", "MCPServerStreamableHttp", "MCPServerStreamableHttpParams"],
    "server": ["MCPServer"],
    "several": ["MCPServerManager"],
    "stdio": ["MCPServerStdio", "MCPServerStdioParams"],
    "tool_data": [
        "MCPToolCustomDataContext",
        "MCPToolCustomDataExtractor",
        "MCPToolMetaContext",
        "MCPToolMetaResolver",
    ],
    "tools": ["MCPUtil"],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
