"""A tool call requested by a model, its tool, the tool's input guardrails, and its approval."""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from standfast.agents.agent import AgentBase
from standfast.agents.context import RunContextWrapper, ToolContext
from standfast.agents.errors import AgentsException, InvalidArguments, ToolInputGuardrailTripwireTriggered, UserError
from standfast.agents.guardrails import (
    ToolGuardrail,
    ToolGuardrailFunctionOutput,
    ToolInputGuardrailData,
    ToolInputGuardrailResult,
)
from standfast.agents.tool_arguments import ParsedArguments
from standfast.agents.tool_identity import ToolRef, get_call_arguments
from standfast.agents.tools import FunctionTool, Tool, default_tool_error_function, explain_tool_error
from standfast.agents.types import maybe_await
from standfast.base.items import Item
from standfast.tool_calls.arguments import parse_arguments
from standfast.tracing.create import maybe_guardrail_span, maybe_tool_span


class ToolFailed(UserError):
    """A tool without ``failure_error_function``, or one of its hooks or guardrails, raised the ``__cause__``."""

    code = "tool-failed"

    def __init__(self, tool_name: str, call_id: str, error: BaseException) -> None:
        super().__init__(f"Error running tool {tool_name}: {error}")
        self.tool_name, self.call_id = tool_name, call_id


class CallSuspended(Exception):
    """A nested run waits for an approval. The call is invoked again, with ``resumed=True``, to continue."""


class wrap_tool_errors:  # noqa: N801 - it is used like a function
    """Raise :class:`ToolFailed` for exceptions of the program's functions about a call: tool, hooks and guardrails."""

    __slots__ = ("_call",)

    def __init__(self, call: "ToolCall") -> None:
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, AgentsException | CallSuspended):
            raise ToolFailed(self._call.tool.qualified_name, self._call.id, error) from error


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
    recorded_call: Any = None
    """Adds to the commit of the call's outcome, in a durable run."""
    workspace: Any = None
    """The workspace of the run."""
    _parsed: ParsedArguments | None = None

    @property
    def declared_tool(self) -> Tool:
        """The tool as the agent declares it, for hooks."""
        return self.tool.local_tool or self.tool

    @property
    def id(self) -> str:
        call_id: str = self.item["call_id"]
        return call_id

    @property
    def requested_arguments(self) -> str:
        return get_call_arguments(self.item) or ""

    @property
    def parsed(self) -> ParsedArguments:
        """The arguments to call with, as the tool gets them; raises :class:`InvalidArguments` if they do not fit it."""
        if self._parsed is None:
            parsed = parse_arguments(self.tool, self.arguments)
            object.__setattr__(self, "_parsed", parsed)
            return parsed
        return self._parsed

    @property
    def shown_arguments(self) -> str:
        """The arguments for the people who decide: the values that the tool will get, as JSON text."""
        return self.parsed.shown

    def make_context(self, run_context: RunContextWrapper[Any]) -> ToolContext[Any]:
        """Return the context that is passed to the tool and its guardrails; its arguments are those the tool gets."""
        context = self.make_unchecked_context(run_context)
        context.tool_arguments, context.parsed_arguments = self.shown_arguments, self.parsed
        return context

    def make_unchecked_context(self, run_context: RunContextWrapper[Any]) -> ToolContext[Any]:
        """Return the context with the arguments as they are, whether they fit the tool or not."""
        context = ToolContext.from_agent_context(
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
        context.recorded_call, context.workspace = self.recorded_call, self.workspace
        context.model_input = run_context.model_input
        return context


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


ApprovalCheckStatus: TypeAlias = Literal["approved", "rejected", "waiting"]

REJECTION_MESSAGE = "Tool execution was not approved."
NOT_REPEATED_MESSAGE = "It is not known whether the call had an effect. It was not made again."
"""The output of an uncertain call that was rejected: a model that reads "not approved" may call the tool again."""


@dataclass(frozen=True)
class ApprovalCheck:
    """The result of :func:`check_approval`.

    ``arguments`` replace the model's if a person edited them; ``message`` is the text for the model after a rejection.
    ``shown`` are the arguments for the people who decide, if they differ from the model's text.
    """

    status: ApprovalCheckStatus
    message: str | None = None
    arguments: str | None = None
    shown: str | None = None
    guardrail_results: list[Any] = field(default_factory=list)


async def check_approval(
    call: ToolCall, context: RunContextWrapper[Any], *, run_guardrails_first: bool = False
) -> ApprovalCheck:
    """Return whether the call is approved, rejected, or waits for a decision. A recorded decision comes first.

    Arguments that do not fit the tool are rejected before anyone is asked. With ``run_guardrails_first``, a call that
    the tool's input guardrails reject is not submitted for approval. The guardrails run again when the call is made, so
    an approval does not bypass them.
    """
    try:
        shown = call.shown_arguments
        decided = _apply_decision(call, context)
    except InvalidArguments as error:
        return ApprovalCheck("rejected", message=await explain_invalid_arguments(call, context, error))
    if decided is not None:
        return decided
    if not await needs_approval(call, context):
        return ApprovalCheck("approved")
    differing = None if shown == call.requested_arguments else shown
    if not run_guardrails_first:
        return ApprovalCheck("waiting", shown=differing)
    guarded = await run_input_guardrails(call, call.make_context(context))
    if guarded.replacement is not None:
        return ApprovalCheck("rejected", message=guarded.replacement, guardrail_results=guarded.guardrail_results)
    return ApprovalCheck("waiting", shown=differing, guardrail_results=guarded.guardrail_results)


async def needs_approval(call: ToolCall, context: RunContextWrapper[Any]) -> bool:
    """Return whether a person must approve the call. A function gets the values that the tool will get."""
    predicate = call.tool.needs_approval
    if not callable(predicate):
        return bool(predicate)
    with wrap_tool_errors(call):
        return bool(await maybe_await(predicate(context, copy.deepcopy(call.parsed.values), call.id)))


async def explain_invalid_arguments(call: ToolCall, context: RunContextWrapper[Any], error: InvalidArguments) -> str:
    """Return the text for the model about arguments that do not fit.

    Raises the error if the tool was made with ``failure_error_function=None``. A tool written by hand has no such
    option, so the model gets the text.
    """
    tool = call.tool
    explain = tool.failure_error_function or (default_tool_error_function if tool.origin is None else None)
    with maybe_tool_span(tool.qualified_name, call.id, call.arguments, description=tool.description):
        if explain is None:
            raise error
        return await explain_tool_error(explain, call.make_unchecked_context(context), error) or str(error)


def _apply_decision(call: ToolCall, context: RunContextWrapper[Any]) -> ApprovalCheck | None:
    requested = call.requested_arguments
    shown = call.shown_arguments if call.arguments == requested else parse_arguments(call.tool, requested).shown
    decision = context.approvals.find(call.ref, call.id, owner=call.owner, arguments=(requested, shown))
    if decision is None:
        return None
    if not decision.approved:
        return ApprovalCheck("rejected", message=decision.message)
    if decision.arguments is not None:
        parse_arguments(call.tool, decision.arguments, edited=True)
    return ApprovalCheck("approved", arguments=decision.arguments)
