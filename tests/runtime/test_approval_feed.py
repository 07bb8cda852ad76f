"""Following the approvals of all runs, from any process, without losing a change."""

import asyncio
import signal
import sqlite3

import pytest

from factories.runtime import Refunds, only_approval, wait_for, wait_until
from standfast import Agent, FunctionModel, InvalidInput, Runtime

KEY = "a key of thirty-two characters!!"


def refunds():
    """Return an agent that asks for a refund in every run."""

    def answer(request):
        is_question = request.input[-1].get("role") == "user"
        return FunctionModel.call("refund", order="7", amount=5) if is_question else "done"

    return Agent("support", tools=[Refunds().tool], model=FunctionModel(answer))


async def take(changes, count):
    return [await wait_for(anext(changes)) for _ in range(count)]


def describe(changes):
    return [(change.approval.id, change.approval.status) for change in changes]


async def test_requests_and_decisions_are_followed(store_url):
    async with Runtime.open(store_url, agents=[refunds()]) as runtime:
        changes = runtime.follow_approvals()
        asked = asyncio.create_task(anext(changes))
        run = await runtime.start("support", "refund 7", session_id="s")
        change = await wait_for(asked)
        assert (change.approval.run_id, change.approval.status) == (run.id, "pending")
        assert change.approval == await only_approval(runtime)
        await runtime.decide(change.approval.id, "approve", by="ann")
        [decided] = await take(changes, 1)
        assert (decided.approval.id, decided.approval.status) == (change.approval.id, "approved")
        assert decided.approval.decided_by == "ann"
        await changes.aclose()


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
async def test_a_follower_begins_with_what_is_pending_and_continues_after_a_cursor(store_url, key):
    async with Runtime.open(store_url, agents=[refunds()], encryption_key=key) as runtime:
        for session in ("a", "b", "c"):
            await wait_for((await runtime.start("support", "refund 7", session_id=session)).wait())
        first, second, third = await runtime.approvals()
        await runtime.decide(second.id, "reject")
        changes = runtime.follow_approvals()
        found = await take(changes, 2)
        assert sorted(describe(found)) == sorted([(first.id, "pending"), (third.id, "pending")])
        await changes.aclose()
        changes = runtime.follow_approvals(after=found[-1].cursor)
        assert describe(await take(changes, 1)) == [(second.id, "rejected")]
        await runtime.decide(third.id, "approve", always=True)  # which also stores a standing decision
        await runtime.decide(first.id, "approve")
        rest = await take(changes, 2)
        assert describe(rest) == [(third.id, "approved"), (first.id, "approved")]
        await changes.aclose()
        changes = runtime.follow_approvals(after=rest[0].cursor)
        assert describe(await take(changes, 1)) == [(first.id, "approved")]
        await changes.aclose()
        with pytest.raises(InvalidInput, match="cursor"):
            await anext(runtime.follow_approvals(after="yesterday"))


async def test_only_approvals_of_an_owner_are_followed(store_url):
    async with Runtime.open(store_url, agents=[refunds()]) as runtime:
        changes = runtime.follow_approvals(owner="ann")
        for number, owner in enumerate(("bob", "ann", "bob")):
            run = await runtime.start("support", "refund 7", session_id=f"{owner} {number}", owner=owner)
            await wait_for(run.wait())
        last = await runtime.start("support", "refund 7", session_id="last", owner="ann")
        found = await take(changes, 2)
        assert found[1].approval.run_id == last.id
        assert found[0].approval.session_id.startswith("ann ")
        await changes.aclose()


async def test_expired_and_withdrawn_approvals_are_followed(store_url):
    async with Runtime.open(store_url, agents=[refunds()], lease=1, approval_ttl=0.2) as runtime:
        changes = runtime.follow_approvals()
        await runtime.start("support", "refund 7", session_id="s")
        seen = [change.approval.status for change in await take(changes, 2)]
        assert seen == ["pending", "expired"]
        await changes.aclose()
    async with Runtime.open(store_url, agents=[refunds()]) as runtime:
        changes = runtime.follow_approvals()
        run = await runtime.start("support", "refund 7", session_id="t")
        await take(changes, 1)
        await wait_for(run.wait())
        await run.cancel()
        assert [change.approval.status for change in await take(changes, 1)] == ["withdrawn"]
        await changes.aclose()


async def test_no_change_is_lost_when_its_process_is_killed(spawn, shared_url, tmp_path):
    async with Runtime.open(shared_url) as runtime:
        seen = {}

        async def follow():
            async for change in runtime.follow_approvals():
                seen[change.approval.id] = change.approval

        following = asyncio.create_task(follow())
        for point in ("after:3", "after:2", "before:3", "after:1", ""):
            async with spawn("charge", shared_url, str(tmp_path / "ledger"), "approval", point) as process:
                assert await process.end() == (-signal.SIGKILL if point else 0)
        stored = {approval.id: approval for approval in await runtime.approvals()}
        assert "approved" in {approval.status for approval in stored.values()}

        async def has_seen_all():
            return seen == stored

        await wait_until(has_seen_all)
        following.cancel()


async def test_approvals_of_stores_without_numbers_are_followed(tmp_path):
    """Those that were pending when the store was migrated come first."""
    url = f"sqlite:///{tmp_path / 'app.db'}"
    async with Runtime.open(url, agents=[refunds()]) as runtime:
        for session in ("a", "b"):
            await wait_for((await runtime.start("support", "refund 7", session_id=session)).wait())
    with sqlite3.connect(tmp_path / "app.db") as connection:
        connection.execute("UPDATE standfast_approvals SET changed = 1")
        connection.execute("DELETE FROM standfast_counters")
    connection.close()
    async with Runtime.open(url, agents=[refunds()]) as runtime:
        changes = runtime.follow_approvals()
        one, two = await take(changes, 2)
        await changes.aclose()
        changes = runtime.follow_approvals(after=one.cursor)
        assert describe(await take(changes, 1)) == describe([two])
        await runtime.decide(one.approval.id, "reject")
        assert describe(await take(changes, 1)) == [(one.approval.id, "rejected")]
        await changes.aclose()
