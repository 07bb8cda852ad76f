"""Store contract: approvals."""

import asyncio

import pytest
from msgspec.structs import replace

from standfast.base.errors import ApprovalMoved
from standfast.store.backend import Backend
from standfast.store.operations import SaveApproval
from standfast.store.records import ApprovalPlace, ApprovalRecord, ChangedApproval
from standfast.testing.faults import FakeClock
from standfast.testing.store.fixtures import StoreFixtures


def make_approval(approval_id: str, *, run_id: str = "r", session_id: str | None = None) -> SaveApproval:
    return SaveApproval(
        approval_id=approval_id, expected=0, run_id=run_id, status="pending", data=b"?", session_id=session_id
    )


class ApprovalClauses(StoreFixtures):
    """An approval is decided once, and its changes are numbered in the order of their commits."""

    async def test_an_approval_is_decided_once(self, run_backend: Backend, clock: FakeClock) -> None:
        requested_at = clock.now
        op = SaveApproval(
            approval_id="a",
            expected=0,
            run_id="r",
            status="pending",
            data=b"?",
            session_id="s",
            expires_at=requested_at + 60,
        )
        assert await run_backend.commit(op) == [None]
        clock.advance(5)
        decision = SaveApproval(approval_id="a", expected=1, run_id="r", status="approved", data=b"!")
        await run_backend.commit(decision)
        with pytest.raises(ApprovalMoved) as moved:
            await run_backend.commit(decision)
        assert (moved.value.name, moved.value.expected, moved.value.found) == ("a", 1, 2)
        approval = await run_backend.get_approval("a")
        assert approval is not None
        assert (approval.status, approval.revision, approval.data) == ("approved", 2, b"!")
        assert (approval.run_id, approval.session_id) == ("r", "s")
        assert (approval.requested_at, approval.expires_at) == (requested_at, None)

    async def test_an_approval_cannot_be_created_twice(self, run_backend: Backend) -> None:
        await run_backend.commit(make_approval("a"))
        with pytest.raises(ApprovalMoved):
            await run_backend.commit(make_approval("a"))

    async def test_approvals_are_listed_by_id_and_filtered(self, run_backend: Backend) -> None:
        await run_backend.commit(
            make_approval("c", run_id="r1", session_id="s"), make_approval("A", run_id="r2"), make_approval("b")
        )
        await run_backend.commit(SaveApproval(approval_id="b", expected=1, run_id="r", status="denied", data=b""))

        async def names(*, after: str = "", limit: int = 9, **where: str | None) -> list[str]:
            where = {"status": None, "run_id": None, "session_id": None, **where}
            found = await run_backend.list_approvals(**where, limit=limit, after=after)
            return [approval.approval_id for approval in found]

        assert await names() == ["A", "b", "c"]
        assert await names(limit=2) == ["A", "b"]
        assert await names(after="A") == ["b", "c"]
        assert await names(status="pending") == ["A", "c"]
        assert await names(run_id="r1") == ["c"]
        assert await names(session_id="s") == ["c"]
        assert await names(status="denied", run_id="r1") == []

    async def test_changed_approvals_are_listed_in_the_order_of_their_changes(self, run_backend: Backend) -> None:
        start = await run_backend.count_approval_changes()
        await run_backend.commit(make_approval("c", session_id="s"), make_approval("A"))
        await run_backend.commit(make_approval("b"))
        await run_backend.commit(SaveApproval(approval_id="c", expected=1, run_id="r", status="denied", data=b""))
        with pytest.raises(ApprovalMoved):
            await run_backend.commit(make_approval("d"), make_approval("c"))

        async def list_changed(
            after: ApprovalPlace, *, limit: int = 9, upto: int | None = None, status: str | None = None
        ) -> list[ChangedApproval]:
            return await run_backend.list_changed_approvals(after=after, upto=upto, status=status, limit=limit)

        first = ApprovalPlace(start, "~")
        found = await list_changed(first)
        assert [one.record.approval_id for one in found] == ["A", "b", "c"]
        assert [one.record for one in found] == [await run_backend.get_approval(name) for name in ("A", "b", "c")]
        assert found[-1].place.number == await run_backend.count_approval_changes()
        assert await list_changed(first, limit=2) == found[:2]
        assert await list_changed(found[0].place) == found[1:]
        assert await list_changed(first, upto=found[1].place.number) == found[:2]
        assert await list_changed(first, status="denied") == found[2:]

    async def test_a_change_of_an_approval_is_never_listed_before_an_earlier_one(self, run_backend: Backend) -> None:
        seen, place = list[str](), ApprovalPlace(await run_backend.count_approval_changes(), "~")
        names = [f"a{number:02}" for number in range(30)]
        writing = asyncio.gather(*(run_backend.commit(make_approval(name)) for name in names))
        while not writing.done() or len(seen) < len(names):
            await asyncio.sleep(0)
            for one in await run_backend.list_changed_approvals(after=place, upto=None, status=None, limit=7):
                seen.append(one.record.approval_id)
                place = one.place
        await writing
        assert sorted(seen) == names

    async def test_due_approvals_are_listed_by_expiry(self, run_backend: Backend, clock: FakeClock) -> None:
        def make_expiring(approval_id: str, seconds: float | None, status: str = "pending") -> SaveApproval:
            at = None if seconds is None else clock.now + seconds
            return replace(make_approval(approval_id), status=status, expires_at=at)

        await run_backend.commit(
            make_expiring("d", 5),
            make_expiring("a", 9),
            make_expiring("c", 5),
            make_expiring("b", None),
            make_expiring("e", 11),
        )
        await run_backend.commit(make_expiring("f", 5, "approved"))

        async def list_due(
            seconds: float, *, limit: int = 9, after: ApprovalRecord | None = None
        ) -> list[ApprovalRecord]:
            return await run_backend.list_due_approvals(
                status="pending", at=clock.now + seconds, limit=limit, after=after
            )

        found = await list_due(10)
        assert [one.approval_id for one in found] == ["c", "d", "a"]
        assert await list_due(10, limit=1) == found[:1]
        assert await list_due(10, after=found[0]) == found[1:]
        assert await list_due(10, after=found[1]) == found[2:]
        assert await list_due(5) == found[:2]
        assert await list_due(4) == []

    async def test_one_of_two_deciders_wins(self, run_backend: Backend) -> None:
        await run_backend.commit(make_approval("a"))
        answers = await asyncio.gather(
            *(
                run_backend.commit(
                    SaveApproval(approval_id="a", expected=1, run_id="r", status=status, data=status.encode())
                )
                for status in ("approved", "denied")
            ),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers if isinstance(answer, BaseException)] == [ApprovalMoved]
