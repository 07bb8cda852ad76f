"""What a trace tells of a model that is asked."""

from typing import Any

from holdfast.models.asking import ModelRequest
from holdfast.models.contract import Model, ModelResponse, ModelTracing
from holdfast.runs.live import Live
from holdfast.runs.persistence import as_items
from holdfast.runs.run_spans import conversation_id
from holdfast.runs.usage import counted
from holdfast.tracing.genai import instructions
from holdfast.tracing.inner import NOTHING, Maybe
from holdfast.tracing.providing import new_span
from holdfast.tracing.span_data import GenerationSpanData
from holdfast.tracing.spans import Span, here


def model_tracing(span: Span[GenerationSpanData]) -> ModelTracing:
    """What the model itself may tell inside of this span."""
    return ModelTracing.ENABLED if span.contents else ModelTracing.ENABLED_WITHOUT_DATA


def asking_span(run: Live, model: Model, request: ModelRequest) -> Maybe[GenerationSpanData]:
    """A span for the whole asking, repeated attempts included."""
    above = here()
    if above is None:
        return NOTHING
    data = GenerationSpanData(model=_name(run, model), model_config=request.model_settings.to_traceable_dict())
    known: dict[str, Any] = {
        "gen_ai.provider.name": getattr(model, "provider_name", None),  # models of other make need not have it
        "gen_ai.conversation.id": conversation_id(run),
        "gen_ai.request.stream": True if run.emit is not None else None,
    }
    if above.contents:
        data.input = as_items(request.input)
        known["gen_ai.system_instructions"] = instructions(request.system_instructions)
    return new_span(data, attributes={name: value for name, value in known.items() if value is not None})


def answered(span: Span[GenerationSpanData], response: ModelResponse) -> None:
    """Fill in what the answer says."""
    span.span_data.usage = counted(response.usage)
    if response.response_id is not None:
        span.attributes["gen_ai.response.id"] = response.response_id
    if span.contents:
        span.span_data.output = response.items


def _name(run: Live, model: Model) -> str:
    """The model's own name, the one it was found by, or that of its type."""
    wanted: Any = run.config.model if run.config.model is not None else run.current_agent.model
    for name in (getattr(model, "model", None), wanted):
        if isinstance(name, str):
            return name
    return type(model).__name__
