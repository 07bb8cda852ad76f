"""Follow the approvals of all runs: every change of any of them, from any process."""

from collections.abc import AsyncGenerator, AsyncIterator

from standfast.base.errors import InvalidInput
from standfast.base.time import Backoff
from standfast.runtime._engine.approvals import APPROVAL_PREFIX, describe_approval
from standfast.runtime._engine.context import RuntimeContext
from standfast.runtime._engine.subscriptions import APPROVALS
from standfast.runtime.types import ApprovalChange
from standfast.store.records import ApprovalPlace, ChangedApproval

PAGE = 100
_AFTER_ALL_IDS = "~"


async def follow_approvals(
    ctx: RuntimeContext, place: ApprovalPlace | None, *, owner: str | None
) -> AsyncGenerator[ApprovalChange, None]:
    """Yield the pending approvals, or with a ``place`` what has changed since, and then every change.

    The store alone decides what is yielded; hints from other processes only make it sooner.
    """
    with ctx.subscriptions.subscribe(APPROVALS) as subscription:
        if place is None:
            newest = await ctx.backend.count_approval_changes()
            async for found in _list_changes(ctx, ApprovalPlace(), upto=newest, status="pending", owner=owner):
                yield make_change(found)
            place = ApprovalPlace(newest, _AFTER_ALL_IDS)
        backoff = Backoff(maximum=ctx.poll_interval)
        while True:
            subscription.pending.clear()
            async for found in _list_changes(ctx, place, upto=None, status=None, owner=owner):
                place = found.place
                if found.record.approval_id.startswith(APPROVAL_PREFIX):
                    yield make_change(found)
                    backoff.reset()
            delay = ctx.poll_interval if ctx.subscriptions.is_linked else backoff.next_delay()
            await subscription.wait(timeout=delay)


async def _list_changes(
    ctx: RuntimeContext, place: ApprovalPlace, *, upto: int | None, status: str | None, owner: str | None
) -> AsyncIterator[ChangedApproval]:
    while True:
        page = await ctx.backend.list_changed_approvals(after=place, upto=upto, status=status, limit=PAGE, owner=owner)
        for found in page:
            yield found
            place = found.place
        if len(page) < PAGE:
            return


def make_change(found: ChangedApproval) -> ApprovalChange:
    cursor = f"{found.place.number}:{found.place.approval_id}"
    return ApprovalChange(describe_approval(found.record), cursor)


def parse_cursor(cursor: object) -> ApprovalPlace:
    number, separator, approval_id = cursor.partition(":") if isinstance(cursor, str) else ("", "", "")
    if not (number.isascii() and number.isdigit() and separator):
        raise InvalidInput(f"after must be the cursor of a change, not {cursor!r}")
    return ApprovalPlace(int(number), approval_id)
