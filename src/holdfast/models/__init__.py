"""Models: the contract, OpenAI's APIs, the embedded one, and asking again. Names are resolved on first use."""

from holdfast.base.lazy import lazy_names

_HOMES = {
    "asking": ["ModelRequest", "ask"],
    "contract": [
        "Model",
        "ModelProvider",
        "ModelResponse",
        "ModelTracing",
        "ResponseFailed",
        "StreamCut",
        "TResponseOutputItem",
        "TResponseStreamEvent",
    ],
    "function_model": ["FunctionModel", "FunctionRequest"],
    "local": ["LocalModel", "LocalModelProvider"],
    "local_server": ["LocalModelUnavailable", "LocalServer", "WeightsMissing"],
    "multi_provider": ["MultiProvider", "MultiProviderMap"],
    "openai_chat": ["OpenAIChatCompletionsModel"],
    "openai_chat_items": ["ReasoningContentReplayContext", "ShouldReplayReasoningContent"],
    "openai_provider": [
        "OpenAIProvider",
        "set_default_openai_api",
        "set_default_openai_client",
        "set_default_openai_key",
    ],
    "openai_responses": ["OpenAIResponsesModel"],
    "raw": ["Raw"],
    "retry": [
        "ModelRetryAdvice",
        "ModelRetryAdviceRequest",
        "ModelRetryNormalizedError",
        "RetryDecision",
        "RetryPolicy",
        "RetryPolicyContext",
        "retry_policies",
    ],
}

__getattr__, __dir__, __all__ = lazy_names(__name__, _HOMES)
