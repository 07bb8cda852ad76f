"""``/approvals``: list and decide the calls that wait for a person."""

from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec

from standfast.base.errors import InvalidInput, StandfastError
from standfast.runtime.errors import ApprovalSettled
from standfast.runtime.types import Approval, ApprovalChange
from standfast.server.endpoints import DECIDE, READ_RUNS, EndpointTable
from standfast.server.exchange import Exchange, choose_owner, make_page, validate_page_size
from standfast.server.open_streams import RETRY
from standfast.server.resources.agents import describe_tool
from standfast.server.streams import EventStream, format_event
from standfast.server.types import (
    ApprovalEvents,
    ApprovalListing,
    Decision,
    DecisionResult,
    NamedDecision,
    Page,
    ToolInfo,
)

endpoints = EndpointTable()


@endpoints.add("GET", "/approvals", READ_RUNS, query=ApprovalListing, result=Page[Approval])
async def list_approvals(exchange: Exchange) -> Page[Approval]:
    """List approvals, the oldest first."""
    query = exchange.query
    size = validate_page_size(exchange, query.limit)
    found = await exchange.reads.approvals(
        status=query.status,
        run_id=query.run_id,
        session_id=query.session_id,
        owner=choose_owner(exchange, query.owner),
        limit=size + 1,
        after=query.after or "",
    )
    return make_page(found, size, lambda approval: approval.id)


@endpoints.add("GET", "/approvals/events", READ_RUNS, query=ApprovalEvents, media_type="text/event-stream")
async def follow_approvals(exchange: Exchange) -> EventStream:
    """Stream the approvals that wait, then every change. The name of an event is the new status of its approval.

    The id of an event is a cursor: `Last-Event-ID`, or `after`, continues after it, on any server.
    """
    after = exchange.request.headers.get("last-event-id") or exchange.query.after
    owner = choose_owner(exchange, exchange.query.owner)
    changes = exchange.reads.follow_approvals(after=after, owner=owner)
    return EventStream(exchange, format_changes(changes))


async def format_changes(changes: AsyncIterator[ApprovalChange]) -> AsyncIterator[bytes]:
    yield RETRY
    async with aclosing(changes) as opened:  # type: ignore[type-var]
        async for change in opened:
            yield format_event(msgspec.json.encode(change.approval), event=change.approval.status, number=change.cursor)


@endpoints.add("POST", "/approvals/decide", DECIDE, body=list[NamedDecision], result=list[DecisionResult])
async def decide_approvals(exchange: Exchange) -> list[DecisionResult]:
    """Decide several approvals, one after the other, at most as many as a page has. Each has a result of its own."""
    if len(exchange.body) > exchange.service.limits.page_size:
        raise InvalidInput(f"at most {exchange.service.limits.page_size} decisions in one request")
    return [await decide_in_batch(exchange, decision) for decision in exchange.body]


async def decide_in_batch(exchange: Exchange, decision: NamedDecision) -> DecisionResult:
    try:
        approval = await exchange.runtime.approval(decision.approval_id)
        decided = await decide(exchange, approval, decision)
    except StandfastError as problem:
        return DecisionResult(approval_id=decision.approval_id, code=problem.code, detail=str(problem))
    return DecisionResult(approval_id=decided.id, status=decided.status)


@endpoints.add("GET", "/approvals/{approval_id}", READ_RUNS, result=Approval)
async def get_approval(exchange: Exchange) -> Approval:
    """Show an approval."""
    return exchange.approval


@endpoints.add("GET", "/approvals/{approval_id}/tool", READ_RUNS, result=ToolInfo)
async def get_approval_tool(exchange: Exchange) -> ToolInfo:
    """Show the tool of an approval with the schema of its arguments, for a form."""
    return describe_tool(await exchange.reads.find_tool(exchange.approval.id))


@endpoints.add("POST", "/approvals/{approval_id}", DECIDE, body=Decision, result=Approval)
async def decide_approval(exchange: Exchange) -> Approval:
    """Decide an approval, once, and resume its run. The decider is the authenticated principal.

    `approve` makes the call, with `arguments` in place of the model's; `reject` passes `message` to the model instead.
    A call of kind `uncertain` may have happened: `done` states that it did and returned `output`, `reject` that it
    shall not be made, and `again` makes it again. Repeating one's own decision changes nothing.
    """
    return await decide(exchange, exchange.approval, exchange.body)


async def decide(exchange: Exchange, approval: Approval, decision: Decision) -> Approval:
    facts = {"approval_id": approval.id, "run_id": approval.run_id, "decision": decision.decision}
    try:
        return await exchange.runtime.decide(
            approval.id,
            decision.decision,
            arguments=decision.arguments,
            message=decision.message,
            output=decision.output,
            by=exchange.principal,
            always=decision.always,
        )
    except ApprovalSettled:
        current = await exchange.reads.approval(approval.id)
        if is_repetition(current, decision, exchange.principal.subject):
            await exchange.service.record_audit("decision repeated", exchange.principal, facts)
            return current
        await exchange.service.record_audit("decision refused", exchange.principal, facts | {"status": current.status})
        raise


def is_repetition(current: Approval, decision: Decision, subject: str) -> bool:
    """Return whether this principal decided the same before, for example in a request whose answer was lost."""
    verdicts = {"approve": "approved", "again": "approved", "reject": "rejected", "done": "done"}
    is_plain = decision.arguments is None and decision.output is None and current.edited is None
    return (
        is_plain
        and current.decided_by == subject
        and current.status == verdicts[decision.decision]
        and current.message == decision.message
        and current.always == decision.always
    )
