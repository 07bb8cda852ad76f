"""Names that programs use in annotations and in isinstance checks."""

import typing

import agents

ALIASES = [
    "ApplyPatchToolCustomDataExtractor",
    "Button",
    "ComputerToolCustomDataExtractor",
    "CustomToolCustomDataExtractor",
    "DynamicPromptFunction",
    "Environment",
    "FunctionToolCustomDataExtractor",
    "HandoffInputFilter",
    "LocalShellExecutor",
    "MCPToolApprovalFunction",
    "OutputGuardrailBlockedMessageFormatter",
    "ReasoningItemIdPolicy",
    "RetryPolicy",
    "RunErrorHandler",
    "RunItem",
    "ShellExecutor",
    "ShellToolContainerNetworkPolicy",
    "ShellToolContainerSkill",
    "ShellToolEnvironment",
    "ShellToolHostedEnvironment",
    "StreamEvent",
    "ToolErrorFormatter",
    "ToolNameCollisionPolicy",
    "ToolNotFoundBehavior",
    "ToolsToFinalOutputFunction",
    "ToolCaller",
    "TContext",
    "RunErrorHandlers",
]
CLASSES = [
    "ApplyPatchEditor",
    "ApplyPatchToolCustomDataContext",
    "ComputerToolCustomDataContext",
    "CustomToolCustomDataContext",
    "Handoff",
    "ImageGenerationToolConfig",
    "InputGuardrailResult",
    "InputItem",
    "MCPToolCancellationError",
    "ModelRetryAdvice",
    "ModelRetryAdviceRequest",
    "ModelTimeoutError",
    "ModelTracing",
    "OpenAIResponsesWebSocketOptions",
    "OutputGuardrailResult",
    "ResponsesWebSocketSession",
    "RunErrorData",
    "ShellActionRequest",
    "ShellCallData",
    "ToolOrigin",
    "ToolOriginType",
    "WebSearchToolImageSettings",
]
for name in ALIASES:
    value = getattr(agents, name)
    print(name, typing.get_args(value) if typing.get_origin(value) is typing.Literal else "")
for name in CLASSES:
    kind = getattr(agents, name)
    if typing.is_typeddict(kind):
        print(name, sorted(kind.__annotations__))
    else:
        print(name, isinstance(kind, type), sorted(getattr(kind, "__members__", ())))
print(agents.ModelTracing.DISABLED.is_disabled(), agents.ModelTracing.ENABLED_WITHOUT_DATA.include_data())
print(
    agents.ToolOriginType.MCP.value,
    agents.ToolOrigin(type=agents.ToolOriginType.MCP, mcp_server_name="s").to_json_dict(),
)
print(
    agents.ShellActionRequest(commands=["ls"]),
    agents.ShellCallData(call_id="c", action=agents.ShellActionRequest(commands=[])).call_id,
)
print(callable(agents.set_default_openai_client), callable(agents.set_trace_provider))
