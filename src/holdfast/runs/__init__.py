"""Runs: agents at work, pausing for a person, resuming anywhere. Names are resolved on first use."""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "config": [
        "CallModelData",
        "CallModelInputFilter",
        "ModelInputData",
        "ReasoningItemIdPolicy",
        "RunConfig",
        "ToolErrorFormatter",
        "ToolErrorFormatterArgs",
        "ToolExecutionConfig",
        "ToolNameCollisionPolicy",
        "ToolNotFoundBehavior",
    ],
    "contexts": ["ContextNotSaved", "register_context_codec"],
    "demo_loop": ["run_demo_loop"],
    "error_handling": [
        "RunErrorData",
        "RunErrorHandler",
        "RunErrorHandlerInput",
        "RunErrorHandlerResult",
        "RunErrorHandlers",
    ],
    "events": ["AgentUpdatedStreamEvent", "RawResponsesStreamEvent", "RunItemStreamEvent", "StreamEvent"],
    "item_contents": ["ItemHelpers"],
    "items": [
        "CompactionItem",
        "HandoffCallItem",
        "HandoffOutputItem",
        "InputItem",
        "MCPApprovalRequestItem",
        "MCPApprovalResponseItem",
        "MCPListToolsItem",
        "MessageOutputItem",
        "ReasoningItem",
        "RunItem",
        "ToolApprovalItem",
        "ToolCallItem",
        "ToolCallOutputItem",
        "ToolSearchCallItem",
        "ToolSearchOutputItem",
    ],
    "result": ["RunResult"],
    "run_state": ["RunState"],
    "runner": ["Runner"],
    "streaming": ["RunResultStreaming"],
    "upgrades": [
        "CURRENT_SCHEMA_VERSION",
        "SCHEMA_VERSION_SUMMARIES",
        "SUPPORTED_SCHEMA_VERSIONS",
        "UnknownVersion",
        "UnreadableState",
    ],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
