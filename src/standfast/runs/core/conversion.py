"""Convert guardrail results and usage to records of a saved run, and back."""

from typing import Any, NoReturn

from standfast.agents.agent import Agent
from standfast.agents.errors import UserError
from standfast.agents.guardrails import (
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailResult,
    OutputGuardrail,
    OutputGuardrailResult,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrail,
    ToolInputGuardrailResult,
    ToolOutputGuardrail,
    ToolOutputGuardrailResult,
)
from standfast.base.usage import InputTokensDetails, OutputTokensDetails, RequestUsage, Usage
from standfast.runs.core.state import GuardrailRecord, UsageRecord
from standfast.tool_calls.output import to_plain_value


def make_guardrail_record(result: Any, *, agent: str) -> GuardrailRecord:
    """Return the record of a guardrail's result."""
    name, info = result.guardrail.get_name(), to_plain_value(result.output.output_info)
    if isinstance(result, InputGuardrailResult):
        return GuardrailRecord("input", name, agent, result.output.tripwire_triggered, info)
    if isinstance(result, OutputGuardrailResult):
        checked = to_plain_value(result.agent_output)
        return GuardrailRecord("output", name, agent, result.output.tripwire_triggered, info, checked)
    behavior = dict(result.output.behavior)
    kind = "tool_input" if isinstance(result, ToolInputGuardrailResult) else "tool_output"
    tripped = behavior["type"] == "raise_exception"
    return GuardrailRecord(kind, name, agent, tripped, info, behavior=behavior)  # type: ignore[arg-type]


def restore_guardrail_result(record: GuardrailRecord, agent: Agent[Any]) -> Any:
    """Return the public result of a record. Its guardrail has only a name and cannot be run again."""
    if record.kind in ("input", "output"):
        verdict = GuardrailFunctionOutput(record.info, record.tripped)
        if record.kind == "input":
            return InputGuardrailResult(InputGuardrail(_raise_unavailable, record.name), verdict)
        return OutputGuardrailResult(OutputGuardrail(_raise_unavailable, record.name), record.judged, agent, verdict)
    behavior: Any = record.behavior or {"type": "allow"}
    output = ToolGuardrailFunctionOutput(record.info, behavior)
    if record.kind == "tool_input":
        return ToolInputGuardrailResult(ToolInputGuardrail(_raise_unavailable, record.name), output)
    return ToolOutputGuardrailResult(ToolOutputGuardrail(_raise_unavailable, record.name), output)


def _raise_unavailable(*_: object) -> NoReturn:
    raise UserError("this guardrail was restored from a saved run: it has a result and cannot be run again")


def to_usage_record(usage: Usage) -> UsageRecord:
    """Return the record of usage."""
    return UsageRecord(
        requests=usage.requests,
        input=usage.input_tokens,
        cached=usage.input_tokens_details.cached_tokens,
        cache_write=usage.input_tokens_details.cache_write_tokens,
        output=usage.output_tokens,
        reasoning=usage.output_tokens_details.reasoning_tokens,
        total=usage.total_tokens,
        entries=tuple(_to_request_record(entry) for entry in usage.request_usage_entries),
    )


def from_usage_record(record: UsageRecord) -> Usage:
    """Return the usage of a record."""
    return Usage(
        requests=record.requests,
        input_tokens=record.input,
        input_tokens_details=InputTokensDetails(record.cached, record.cache_write),
        output_tokens=record.output,
        output_tokens_details=OutputTokensDetails(record.reasoning),
        total_tokens=record.total,
        request_usage_entries=[_from_request_record(entry) for entry in record.entries],
    )


def _to_request_record(entry: RequestUsage) -> UsageRecord:
    return UsageRecord(
        input=entry.input_tokens,
        cached=entry.input_tokens_details.cached_tokens,
        cache_write=entry.input_tokens_details.cache_write_tokens,
        output=entry.output_tokens,
        reasoning=entry.output_tokens_details.reasoning_tokens,
        total=entry.total_tokens,
    )


def _from_request_record(record: UsageRecord) -> RequestUsage:
    return RequestUsage(
        record.input,
        record.output,
        record.total,
        InputTokensDetails(record.cached, record.cache_write),
        OutputTokensDetails(record.reasoning),
    )


def usage_as_dict(usage: Usage) -> dict[str, Any]:
    """Return usage as a dict of numbers, for traces."""
    return {
        "requests": usage.requests,
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cached_tokens": usage.input_tokens_details.cached_tokens,
        "cache_write_tokens": usage.input_tokens_details.cache_write_tokens,
        "reasoning_tokens": usage.output_tokens_details.reasoning_tokens,
    }


def export_trace(trace: Any) -> dict[str, Any] | None:
    """Return a trace as it is saved with a run: its exported form, without an API key."""
    exported = trace.to_json() if hasattr(trace, "to_json") else trace
    return None if exported is None else {k: v for k, v in dict(exported).items() if "api_key" not in k}
