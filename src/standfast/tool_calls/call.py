"""A tool call requested by a model, together with its tool and the tool's input guardrails."""

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
    """A tool without ``failure_error_function`` raised an exception, which is the ``__cause__``."""

    code = "tool-failed"

    def __init__(self, tool_name: str, call_id: str, error: BaseException) -> None:
        super().__init__(f"Error running tool {tool_name}: {error}")
        self.tool_name, self.call_id = tool_name, call_id


@dataclass(frozen=True, eq=False)
class ToolCall:
    """A call of a function tool.

    ``item`` is the call as a plain dict, ``raw`` as the model returned it, and ``owner`` the path of the agent.
    ``requested_arguments`` are the model's; ``arguments`` are those to call with, which a person may have edited.
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
        call_id: str = self.item["call_id"]
        return call_id

    @property
    def requested_arguments(self) -> str:
        return self.item.get("arguments") or ""

    def make_context(self, run_context: RunContextWrapper[Any]) -> ToolContext[Any]:
        """Return the context that is passed to the tool."""
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
    """The results of a tool's guardrails; ``replacement`` is the text for the model if one rejected the call."""

    guardrail_results: list[Any] = field(default_factory=list)
    replacement: str | None = None


async def run_tool_guardrail(guardrail: ToolGuardrail[Any], data: Any) -> ToolGuardrailFunctionOutput:
    """Run a guardrail of a tool, inside a span if the run is traced."""
    with maybe_guardrail_span(guardrail.get_name()) as span:
        output = await guardrail.run(data)
        if span is not None:
            span.span_data.triggered = output.behavior["type"] != "allow"
        return output


async def run_input_guardrails(call: ToolCall, context: ToolContext[Any]) -> ToolGuardrailOutcome:
    """Run the tool's input guardrails in order until one rejects the call.

    Raises :class:`ToolInputGuardrailTripwireTriggered` if a guardrail ends the run.
    """
    outcome = ToolGuardrailOutcome()
    for guardrail in call.tool.tool_input_guardrails or ():
        data = ToolInputGuardrailData(context=context, agent=call.agent)  # type: ignore[arg-type]
        output = await run_tool_guardrail(guardrail, data)
        outcome.guardrail_results.append(ToolInputGuardrailResult(guardrail, output))
        if output.behavior["type"] == "raise_exception":
            raise ToolInputGuardrailTripwireTriggered(guardrail, output)
        if output.behavior["type"] == "reject_content":
            outcome.replacement = output.behavior["message"]
            return outcome
    return outcome
