"""Whether a call may be made: what a person decided, what the tool demands, what its guardrails say."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from holdfast.agents.context import RunContextWrapper
from holdfast.agents.types import resolved
from holdfast.toolcalls.call import Call, guard_input
from holdfast.toolcalls.output import parsed_arguments

Status: TypeAlias = Literal["approved", "rejected", "waiting"]

REJECTED = "Tool execution was not approved."


@dataclass(frozen=True)
class Verdict:
    """``arguments`` are a person's own, ``message`` is what the model is told after a no."""

    status: Status
    message: str | None = None
    arguments: str | None = None
    results: list[Any] = field(default_factory=list)


async def judge(call: Call, context: RunContextWrapper[Any], *, guard_first: bool = False) -> Verdict:
    """The verdict on a call. A decision about it counts before everything else.

    With ``guard_first`` the tool's input guardrails spare a person the question about calls they would refuse
    anyway. They are asked again when the call is made: an approval is no way around them.
    """
    decision = context.approvals.find(call.ref, call.id, owner=call.owner, arguments=call.asked)
    if decision is not None and decision.approved:
        return Verdict("approved", arguments=decision.arguments)
    if decision is not None:
        return Verdict("rejected", message=decision.message)
    if not await needs_approval(call, context):
        return Verdict("approved")
    if not guard_first:
        return Verdict("waiting")
    guarded = await guard_input(call, call.context(context))
    if guarded.instead is not None:
        return Verdict("rejected", message=guarded.instead, results=guarded.results)
    return Verdict("waiting", results=guarded.results)


async def needs_approval(call: Call, context: RunContextWrapper[Any]) -> bool:
    """Whether a person has to be asked. A tool that decides by arguments is not asked about unreadable ones."""
    asked = call.tool.needs_approval
    if not callable(asked):
        return bool(asked)
    given = parsed_arguments(call.asked)
    return True if given is None else bool(await resolved(asked(context, given, call.id)))
