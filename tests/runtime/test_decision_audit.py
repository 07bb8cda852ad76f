"""A decision and its entry in the audit log are one commit: after a crash or a failure both are there, or neither."""

import contextlib
import itertools

import pytest

from factories.runtime import Refunds, wait_for
from standfast import InvalidDecision, Runtime, Store, StoreUnavailable
from standfast.server import Audit, Principal, Role
from standfast.store.sqlite.backend import SqliteBackend
from standfast.testing.faults import SqliteFaults

POINTS = [f"{moment}:{number}" for number in (1, 2) for moment in ("before", "after")]


async def ask(url, count=1):
    """Return the ids of so many approvals that wait, each of a run of its own."""
    asked = []
    for _ in range(count):
        async with Runtime.open(url, agents=[Refunds().agent()]) as runtime:
            run = await runtime.start("support", "go")
            asked += [approval.id for approval in (await wait_for(run.wait())).approvals]
    return asked


async def list_decided(runtime):
    return [entry for entry in await Audit(runtime.store).list(limit=1000) if entry.action == "decided"]


@pytest.mark.parametrize("way", ["library", "server"])
async def test_a_process_that_dies_leaves_the_decision_with_its_entry_or_neither(spawn, shared_url, way):
    approvals = await ask(shared_url, len(POINTS))
    for approval_id, point in zip(approvals, POINTS, strict=True):
        async with spawn("decide_and_die", shared_url, approval_id, way, point) as child:
            await child.end()
    async with Runtime.open(shared_url) as runtime:
        made = {one: (await runtime.approval(one)).status for one in approvals}
        entries = await list_decided(runtime)
    assert made[approvals[0]] == "pending"  # it died before the commit
    assert made[approvals[1]] == "approved"  # and right after it
    noted = [entry.details["approval_id"] for entry in entries]
    assert sorted(noted) == sorted(one for one, status in made.items() if status == "approved")
    assert {entry.subject for entry in entries} == {"eve"}


async def test_a_driver_failure_at_any_statement_leaves_both_or_neither(tmp_path):
    path = tmp_path / "app.db"
    faults = SqliteFaults()
    backend = SqliteBackend(path, connect=faults.connect)
    approvals = iter(await ask(f"sqlite:///{path}", 60))
    async with Runtime.open(Store(backend)) as runtime:
        for late in (False, True):
            for statements in itertools.count():
                approval_id = next(approvals)
                with faults.fail_after(statements, late=late) as fault, contextlib.suppress(StoreUnavailable):
                    await runtime.decide(approval_id, "reject", by="ann")
                status = (await runtime.approval(approval_id)).status
                noted = [e for e in await list_decided(runtime) if e.details["approval_id"] == approval_id]
                assert [entry.details["decision"] for entry in noted] == ["reject"] * (status == "rejected")
                if not fault.triggered:
                    assert status == "rejected"
                    break
            assert statements > 3
    await backend.close()


async def test_an_entry_says_who_decided_what(store_url):
    principal = Principal(subject="key:1", role=Role.APPROVER, owner="acme", method="key")
    refunds = Refunds()
    async with Runtime.open(store_url, agents=[refunds.agent(name=name) for name in "abcd"]) as runtime:
        approvals = []
        for name, by in (("a", "ann"), ("b", principal), ("c", None), ("d", 7)):
            [approval] = (await wait_for((await runtime.start(name, "go")).wait())).approvals
            approvals.append(approval)
            if by == 7:
                with pytest.raises(InvalidDecision, match="by must be a string"):
                    await runtime.decide(approval.id, "approve", by=by)
            else:
                decided = await runtime.decide(approval.id, "approve", by=by)
                assert decided.decided_by == (by if by is None or by == "ann" else "key:1")
        entries = [(e.subject, e.owner, e.method, e.details) for e in await list_decided(runtime)]
    named = [{"approval_id": one.id, "run_id": one.run_id, "decision": "approve"} for one in approvals[:3]]
    assert entries[::-1] == [
        ("ann", "", "", named[0]),
        ("key:1", "acme", "key", named[1]),
        ("nobody", "", "", named[2]),
    ]
