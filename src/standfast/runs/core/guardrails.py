"""What guardrails said, in a saved run and back."""

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
from standfast.runs.core.state import GuardrailRecord
from standfast.tool_calls.output import to_plain_value


def make_guardrail_record(result: Any, *, agent: str) -> GuardrailRecord:
    """A guardrail's result, for a run that is saved."""
    name, info = result.guardrail.get_name(), to_plain_value(result.output.output_info)
    if isinstance(result, InputGuardrailResult):
        return GuardrailRecord("input", name, agent, result.output.tripwire_triggered, info)
    if isinstance(result, OutputGuardrailResult):
        judged = to_plain_value(result.agent_output)
        return GuardrailRecord("output", name, agent, result.output.tripwire_triggered, info, judged)
    behavior = dict(result.output.behavior)
    kind = "tool_input" if isinstance(result, ToolInputGuardrailResult) else "tool_output"
    tripped = behavior["type"] == "raise_exception"
    return GuardrailRecord(kind, name, agent, tripped, info, behavior=behavior)  # type: ignore[arg-type]


def restore_guardrail_result(record: GuardrailRecord, agent: Agent[Any]) -> Any:
    """A guardrail's result as programs see it. The guardrail in it is only a name: it cannot be asked again."""
    if record.kind in ("input", "output"):
        said = GuardrailFunctionOutput(record.info, record.tripped)
        if record.kind == "input":
            return InputGuardrailResult(InputGuardrail(_raise_unavailable, record.name), said)
        return OutputGuardrailResult(OutputGuardrail(_raise_unavailable, record.name), record.judged, agent, said)
    behavior: Any = record.behavior or {"type": "allow"}
    output = ToolGuardrailFunctionOutput(record.info, behavior)
    if record.kind == "tool_input":
        return ToolInputGuardrailResult(ToolInputGuardrail(_raise_unavailable, record.name), output)
    return ToolOutputGuardrailResult(ToolOutputGuardrail(_raise_unavailable, record.name), output)


def _raise_unavailable(*_: object) -> NoReturn:
    raise UserError("this guardrail belongs to a run that was saved; only its result is left")
