"""What a trace tells of a model that is asked."""

from typing import Any

from holdfast.models.asking import ModelRequest
from holdfast.models.contract import Model, ModelResponse, ModelTracing
from holdfast.runs.live import ActiveRun
from holdfast.runs.persistence import as_items
from holdfast.runs.run_spans import get_conversation_id
from holdfast.runs.usage import usage_as_dict
from holdfast.tracing.genai import encode_instructions
from holdfast.tracing.inner import NO_SPAN, OptionalSpan
from holdfast.tracing.providing import new_span
from holdfast.tracing.span_data import GenerationSpanData
from holdfast.tracing.spans import Span, get_recorded_parent


def get_model_tracing(span: Span[GenerationSpanData]) -> ModelTracing:
    """What the model itself may tell inside of this span."""
    return ModelTracing.ENABLED if span.include_sensitive_data else ModelTracing.ENABLED_WITHOUT_DATA


def start_generation_span(run: ActiveRun, model: Model, request: ModelRequest) -> OptionalSpan[GenerationSpanData]:
    """A span for the whole asking, repeated attempts included."""
    above = get_recorded_parent()
    if above is None:
        return NO_SPAN
    data = GenerationSpanData(
        model=_get_model_name(run, model), model_config=request.model_settings.to_traceable_dict()
    )
    known: dict[str, Any] = {
        "gen_ai.provider.name": getattr(model, "provider_name", None),  # models of other make need not have it
        "gen_ai.conversation.id": get_conversation_id(run),
        "gen_ai.request.stream": True if run.emit is not None else None,
    }
    if above.include_sensitive_data:
        data.input = as_items(request.input)
        known["gen_ai.system_instructions"] = encode_instructions(request.system_instructions)
    return new_span(data, attributes={name: value for name, value in known.items() if value is not None})


def record_response(span: Span[GenerationSpanData], response: ModelResponse) -> None:
    """Fill in what the answer says."""
    span.span_data.usage = usage_as_dict(response.usage)
    if response.response_id is not None:
        span.attributes["gen_ai.response.id"] = response.response_id
    if span.include_sensitive_data:
        span.span_data.output = response.items


def _get_model_name(run: ActiveRun, model: Model) -> str:
    """The model's own name, the one it was found by, or that of its type."""
    wanted: Any = run.config.model if run.config.model is not None else run.current_agent.model
    for name in (getattr(model, "model", None), wanted):
        if isinstance(name, str):
            return name
    return type(model).__name__
