"""Approval of tool calls: recorded decisions, the tool's ``needs_approval`` and its input guardrails."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from standfast.agents.context import RunContextWrapper
from standfast.agents.types import maybe_await
from standfast.tool_calls.call import ToolCall, run_input_guardrails
from standfast.tool_calls.output import parse_arguments

ApprovalCheckStatus: TypeAlias = Literal["approved", "rejected", "waiting"]

REJECTION_MESSAGE = "Tool execution was not approved."


@dataclass(frozen=True)
class ApprovalCheck:
    """The result of :func:`check_approval`.

    ``arguments`` replace the model's if a person edited them; ``message`` is the text for the model after a rejection.
    """

    status: ApprovalCheckStatus
    message: str | None = None
    arguments: str | None = None
    guardrail_results: list[Any] = field(default_factory=list)


async def check_approval(
    call: ToolCall, context: RunContextWrapper[Any], *, run_guardrails_first: bool = False
) -> ApprovalCheck:
    """Return whether the call is approved, rejected, or waits for a decision. A recorded decision comes first.

    With ``run_guardrails_first``, a call that the tool's input guardrails reject is not submitted for approval. The
    guardrails run again when the call is made, so an approval does not bypass them.
    """
    decision = context.approvals.find(call.ref, call.id, owner=call.owner, arguments=call.requested_arguments)
    if decision is not None and decision.approved:
        return ApprovalCheck("approved", arguments=decision.arguments)
    if decision is not None:
        return ApprovalCheck("rejected", message=decision.message)
    if not await needs_approval(call, context):
        return ApprovalCheck("approved")
    if not run_guardrails_first:
        return ApprovalCheck("waiting")
    guarded = await run_input_guardrails(call, call.make_context(context))
    if guarded.replacement is not None:
        return ApprovalCheck("rejected", message=guarded.replacement, guardrail_results=guarded.guardrail_results)
    return ApprovalCheck("waiting", guardrail_results=guarded.guardrail_results)


async def needs_approval(call: ToolCall, context: RunContextWrapper[Any]) -> bool:
    """Return whether a person must approve the call. Arguments that cannot be parsed always need approval."""
    predicate = call.tool.needs_approval
    if not callable(predicate):
        return bool(predicate)
    arguments = parse_arguments(call.requested_arguments)
    return True if arguments is None else bool(await maybe_await(predicate(context, arguments, call.id)))
