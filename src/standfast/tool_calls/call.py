"""A call that a model wants to be made, bound to the tool it means."""

from dataclasses import dataclass, field
from typing import Any

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper, ToolContext
from standfast.agents.errors import ToolInputGuardrailTripwireTriggered, UserError
from standfast.agents.guardrails import (
    ToolGuardrail,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolInputGuardrailResult,
)
from standfast.agents.tool_identity import ToolRef
from standfast.agents.tools import FunctionTool
from standfast.base.items import Item
from standfast.tracing.instrumentation import maybe_guardrail_span


class ToolFailed(UserError):
    """A tool raised an error and has no words for it (``failure_error_function=None``). The error is the cause."""

    code = "tool-failed"

    def __init__(self, tool_name: str, call_id: str, error: BaseException) -> None:
        super().__init__(f"Error running tool {tool_name}: {error}")
        self.tool_name, self.call_id = tool_name, call_id


@dataclass(frozen=True, eq=False)
class ToolCall:
    """``item`` is the call as a plain dict and ``raw`` as the model said it; ``owner`` is the agent's path.

    ``asked`` are the model's arguments and ``arguments`` those to call with: a person may have edited them.
    """

    tool: FunctionTool
    ref: ToolRef
    item: Item
    raw: Any
    agent: AgentBase[Any]
    owner: str
    arguments: str
    idempotency_key: str
    run_config: Any = None
    conversation_key: str = ""

    @property
    def id(self) -> str:
        name: str = self.item["call_id"]
        return name

    @property
    def requested_arguments(self) -> str:
        return self.item.get("arguments") or ""

    def make_context(self, run_context: RunContextWrapper[Any]) -> ToolContext[Any]:
        """What the tool is given."""
        return ToolContext.from_agent_context(
            run_context,
            self.id,
            self.raw,
            self.agent,
            tool_name=self.tool.name,
            tool_arguments=self.arguments,
            tool_namespace=self.tool.namespace,
            run_config=self.run_config,
            idempotency_key=self.idempotency_key,
            conversation_key=self.conversation_key,
        )


@dataclass
class ToolGuardrailOutcome:
    """What the guardrails of a tool said; ``instead`` is what the model gets when one of them objected."""

    guardrail_results: list[Any] = field(default_factory=list)
    replacement: str | None = None


async def run_tool_guardrail(guardrail: ToolGuardrail[Any], data: Any) -> ToolGuardrailFunctionOutput:
    """What a guardrail of a tool says."""
    with maybe_guardrail_span(guardrail.get_name()) as span:
        output = await guardrail.run(data)
        if span is not None:
            span.span_data.triggered = output.behavior["type"] != "allow"
        return output


async def run_input_guardrails(call: ToolCall, context: ToolContext[Any]) -> ToolGuardrailOutcome:
    """Ask the tool's input guardrails in order, until one objects. One that raises ends the run."""
    found = ToolGuardrailOutcome()
    for guardrail in call.tool.tool_input_guardrails or ():
        data = ToolInputGuardrailData(context=context, agent=call.agent)  # type: ignore[arg-type]
        output = await run_tool_guardrail(guardrail, data)
        found.guardrail_results.append(ToolInputGuardrailResult(guardrail, output))
        if output.behavior["type"] == "raise_exception":
            raise ToolInputGuardrailTripwireTriggered(guardrail, output)
        if output.behavior["type"] == "reject_content":
            found.replacement = output.behavior["message"]
            return found
    return found
