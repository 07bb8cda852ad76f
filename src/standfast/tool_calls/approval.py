"""Whether a call may be made: what a person decided, what the tool demands, what its guardrails say."""

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
    """``arguments`` are a person's own, ``message`` is what the model is told after a no."""

    status: ApprovalCheckStatus
    message: str | None = None
    arguments: str | None = None
    guardrail_results: list[Any] = field(default_factory=list)


async def check_approval(
    call: ToolCall, context: RunContextWrapper[Any], *, run_guardrails_first: bool = False
) -> ApprovalCheck:
    """The verdict on a call. A decision about it counts before everything else.

    With ``guard_first`` the tool's input guardrails spare a person the question about calls they would refuse
    anyway. They are asked again when the call is made: an approval is no way around them.
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
    """Whether a person has to be asked. A tool that decides by arguments is not asked about unreadable ones."""
    asked = call.tool.needs_approval
    if not callable(asked):
        return bool(asked)
    given = parse_arguments(call.requested_arguments)
    return True if given is None else bool(await maybe_await(asked(context, given, call.id)))
