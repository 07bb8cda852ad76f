"""Store contract: runs, approvals and leases."""

import asyncio

import pytest
from msgspec.structs import replace

from standfast.base.errors import FenceLost, JournalMoved, NotFound, RunMoved, WrongKey
from standfast.store.backend import Backend
from standfast.store.operations import (
    AcquireLease,
    AppendEvents,
    AppendJournal,
    CheckFence,
    LeaseHeld,
    MoveBehind,
    ReleaseLease,
    RenewLease,
    SaveRun,
    Splice,
)
from standfast.store.records import JournalEnd, Lease, LogEntry
from standfast.testing.faults import FakeClock, Reopen
from standfast.testing.store.fixtures import StoreFixtures, read_data


def make_run(run_id: str, *, session_id: str | None = None, status: str = "running") -> SaveRun:
    return SaveRun(run_id=run_id, expected=0, status=status, data=b"{}", session_id=session_id)


class RunClauses(StoreFixtures):
    """Run records, their two logs, and approvals."""

    async def test_missing_runs_and_approvals_are_not_found(self, run_backend: Backend) -> None:
        assert await run_backend.get_run("r") is None
        assert await run_backend.list_runs(status=None, session_id=None, limit=9, after=0) == []
        assert await run_backend.read_journal("r", after=0) == []
        assert await run_backend.read_events("r", after=0, limit=9) == []
        assert await run_backend.get_approval("a") is None
        assert await run_backend.list_approvals(status=None, run_id=None, session_id=None, limit=9, after="") == []

    async def test_saving_a_run_increments_its_revision(self, run_backend: Backend, clock: FakeClock) -> None:
        created_at = clock.now
        assert await run_backend.commit(make_run("r", session_id="s")) == [None]
        clock.advance(5)
        op = SaveRun(run_id="r", expected=1, status="waiting", data=b"\xff\x00", session_id="s")
        await run_backend.commit(op)
        run = await run_backend.get_run("r")
        assert run is not None
        assert (run.revision, run.status, run.data, run.session_id) == (2, "waiting", b"\xff\x00", "s")
        assert (run.created_at, run.updated_at) == (created_at, clock.now)
        assert (run.journal_length, run.event_length) == (0, 0)

    @pytest.mark.parametrize("expected", [0, 1, 3])
    async def test_a_run_at_another_revision_is_not_overwritten(self, run_backend: Backend, expected: int) -> None:
        await run_backend.commit(make_run("r"))
        await run_backend.commit(SaveRun(run_id="r", expected=1, status="waiting", data=b"2"))
        before = await run_backend.get_run("r")
        with pytest.raises(RunMoved) as moved:
            await run_backend.commit(SaveRun(run_id="r", expected=expected, status="lost", data=b"x"))
        assert (moved.value.name, moved.value.expected, moved.value.found) == ("r", expected, 2)
        assert await run_backend.get_run("r") == before

    async def test_a_run_must_be_created_at_revision_0(self, run_backend: Backend) -> None:
        with pytest.raises(RunMoved):
            await run_backend.commit(SaveRun(run_id="r", expected=1, status="running", data=b""))
        assert await run_backend.get_run("r") is None

    async def test_runs_are_listed_in_order_of_creation(self, run_backend: Backend, clock: FakeClock) -> None:
        for name in ("z", "a", "m"):
            await run_backend.commit(make_run(name))
            clock.advance(-10)
        await run_backend.commit(SaveRun(run_id="z", expected=1, status="running", data=b"later"))
        found = await run_backend.list_runs(status=None, session_id=None, limit=9, after=0)
        assert [run.run_id for run in found] == ["z", "a", "m"]
        rest = await run_backend.list_runs(status=None, session_id=None, limit=1, after=found[0].order)
        assert [run.run_id for run in rest] == ["a"]

    @staticmethod
    async def list_claimed(backend: Backend, *queues: str, limit: int = 9, after: str | None = None) -> list[str]:
        """Return the ids of the runs that can be claimed."""
        return [run.run_id for run in await backend.list_claimable(queues=queues, limit=limit, after=after)]

    async def test_runs_to_claim_are_listed_in_turns_of_their_shares(self, run_backend: Backend) -> None:
        for name in ("a1", "a2", "a3", "b1", "c1", "b2"):
            save = make_run(name, status="queued")
            await run_backend.commit(replace(save, queue="q", share=name[0]))
        assert await self.list_claimed(run_backend, "q") == ["a1", "b1", "c1", "a2", "b2", "a3"]
        assert await self.list_claimed(run_backend, "q", after="a") == ["b1", "c1", "a1", "b2", "a2", "a3"]
        assert await self.list_claimed(run_backend, "q", after="z", limit=2) == ["a1", "b1"]
        assert await self.list_claimed(run_backend, "q", after="b", limit=1) == ["c1"]
        assert await self.list_claimed(run_backend, "other") == []
        assert await self.list_claimed(run_backend) == []

    async def test_runs_to_claim_are_listed_by_priority_and_status(self, run_backend: Backend) -> None:
        for name, queue, status, priority in (
            ("low", "q", "queued", -1),
            ("first", "q", "queued", 0),
            ("ended", "q", "completed", 9),
            ("held", "q", "running", 9),
            ("next", "q", "next", 0),
            ("again", "q", "woken", 0),
            ("high", "p", "queued", 5),
            ("foreign", "r", "queued", 7),
        ):
            await run_backend.commit(replace(make_run(name, status=status), queue=queue, priority=priority))
        await run_backend.commit(replace(make_run("behind", status="queued"), queue="q", priority=9))
        await run_backend.commit(MoveBehind(run_id="behind", behind=True), MoveBehind(run_id="none", behind=True))
        assert await self.list_claimed(run_backend, "q", "p") == ["high", "again", "next", "first", "low"]
        assert await self.list_claimed(run_backend, "q", "p", limit=2) == ["high", "again"]
        before = await run_backend.get_run("behind")
        await run_backend.commit(MoveBehind(run_id="behind", behind=False))
        assert await self.list_claimed(run_backend, "q", limit=1) == ["behind"]
        assert before is not None
        assert await run_backend.get_run("behind") == replace(before, behind=False)

    async def test_a_run_keeps_its_place_in_the_queue_unless_it_is_given_another(self, run_backend: Backend) -> None:
        await run_backend.commit(replace(make_run("r"), queue="q", priority=3, share="ann"))
        await run_backend.commit(SaveRun(run_id="r", expected=1, status="queued", data=b"{}"))
        run = await run_backend.get_run("r")
        assert run is not None
        assert (run.queue, run.priority, run.share) == ("q", 3, "ann")
        await run_backend.commit(SaveRun(run_id="r", expected=2, status="queued", data=b"{}", queue="p", priority=1))
        [run] = await run_backend.list_claimable(queues=["p"], limit=1, after=None)
        assert (run.queue, run.priority, run.share) == ("p", 1, "ann")

    async def test_the_depth_of_queues_is_counted(self, run_backend: Backend, clock: FakeClock) -> None:
        oldest = clock.now
        for name, status in (("a", "queued"), ("b", "queued"), ("c", "queued"), ("d", "running")):
            await run_backend.commit(replace(make_run(name, status=status), queue="q"))
            clock.advance(10)
        await run_backend.commit(MoveBehind(run_id="c", behind=True))
        await run_backend.commit(replace(make_run("e", status="woken"), queue="p"))
        depths = {(one.queue, one.behind): (one.count, one.oldest_at) for one in await run_backend.list_queue_depths()}
        assert await run_backend.list_waiting_queues() == ["p", "q"]
        assert depths == {("p", False): (1, oldest + 40), ("q", False): (2, oldest), ("q", True): (1, oldest + 20)}

    async def test_runs_are_listed_newest_first(self, run_backend: Backend) -> None:
        for name in ("z", "a", "m"):
            await run_backend.commit(make_run(name, status="running" if name == "a" else "waiting"))

        async def names(after: int = 0, status: list[str] | None = None, limit: int = 9) -> list[str]:
            found = await run_backend.list_runs(
                status=status, session_id=None, limit=limit, after=after, newest_first=True
            )
            return [run.run_id for run in found]

        [newest] = await run_backend.list_runs(status=None, session_id=None, limit=1, after=0, newest_first=True)
        assert await names() == ["m", "a", "z"]
        assert await names(newest.order) == ["a", "z"]
        assert await names(newest.order, limit=1) == ["a"]
        assert await names(status=["waiting", "running"], limit=2) == ["m", "a"]
        assert await names(newest.order, ["waiting"]) == ["z"]

    async def test_runs_are_filtered_by_status_and_session(self, run_backend: Backend) -> None:
        await run_backend.commit(make_run("r1", session_id="s"), make_run("r2", session_id="t", status="waiting"))
        await run_backend.commit(make_run("r3", session_id="s", status="done"), make_run("r4"))

        async def names(status: list[str] | None, session_id: str | None) -> list[str]:
            found = await run_backend.list_runs(status=status, session_id=session_id, limit=9, after=0)
            return [run.run_id for run in found]

        assert await names(["running"], None) == ["r1", "r4"]
        assert await names(["waiting", "done"], None) == ["r2", "r3"]
        assert await names([], None) == []
        assert await names(None, "s") == ["r1", "r3"]
        assert await names(["running"], "s") == ["r1"]

    async def test_journal_and_events_count_from_1_without_gaps(self, run_backend: Backend, clock: FakeClock) -> None:
        at = clock.now
        await run_backend.commit(
            make_run("r"),
            AppendJournal(run_id="r", entries=(("started", b"\x00"), ("ended", b"2"))),
            AppendEvents(run_id="r", events=(("message", b"hello"),)),
        )
        clock.advance(1)
        [end] = await run_backend.commit(AppendJournal(run_id="r", entries=(("started", b"3"),)))
        assert end in (None, JournalEnd(3, at + 1))
        assert await run_backend.commit(AppendEvents(run_id="r", events=(("message", b"x"), ("ended", b"y")))) == [None]
        assert await run_backend.read_journal("r", after=0) == [
            LogEntry(1, "started", b"\x00", at),
            LogEntry(2, "ended", b"2", at),
            LogEntry(3, "started", b"3", at + 1),
        ]
        events = await run_backend.read_events("r", after=0, limit=9)
        assert [(event.seq, event.kind) for event in events] == [(1, "message"), (2, "message"), (3, "ended")]
        run = await run_backend.get_run("r")
        assert run is not None
        assert (run.journal_length, run.event_length, run.revision) == (3, 3, 1)

    async def test_logs_are_read_after_a_given_number(self, run_backend: Backend) -> None:
        entries = tuple(("kind", str(number).encode()) for number in range(1, 6))
        await run_backend.commit(
            make_run("r"), AppendJournal(run_id="r", entries=entries), AppendEvents(run_id="r", events=entries)
        )
        assert [entry.seq for entry in await run_backend.read_journal("r", after=3)] == [4, 5]
        assert [event.seq for event in await run_backend.read_events("r", after=1, limit=2)] == [2, 3]
        assert await run_backend.read_events("r", after=5, limit=9) == []

    async def test_logs_belong_to_their_run(self, run_backend: Backend) -> None:
        await run_backend.commit(make_run("r"), make_run("q"))
        await run_backend.commit(
            AppendEvents(run_id="r", events=(("a", b""),)),
            AppendEvents(run_id="q", events=(("b", b""),)),
            AppendEvents(run_id="r", events=(("c", b""),)),
        )
        assert [(event.seq, event.kind) for event in await run_backend.read_events("r", after=0, limit=9)] == [
            (1, "a"),
            (2, "c"),
        ]

    async def test_appending_to_the_log_of_a_missing_run_is_refused(self, run_backend: Backend) -> None:
        for op in (AppendJournal(run_id="r", entries=(("a", b""),)), AppendEvents(run_id="r", events=(("a", b""),))):
            with pytest.raises(NotFound):
                await run_backend.commit(op)
        assert await run_backend.read_journal("r", after=0) == []

    async def test_a_sealed_journal_accepts_only_entries_with_the_next_seal(self, run_backend: Backend) -> None:
        entries = (("started", b"1"), ("ended", b"2"))
        await run_backend.commit(
            make_run("r"), AppendJournal(run_id="r", entries=entries, expected=0, seal=b"\x00first")
        )
        run = await run_backend.get_run("r")
        assert run is not None
        assert run.seal == b"\x00first"
        with pytest.raises(WrongKey, match="encryption_key"):
            await run_backend.commit(AppendJournal(run_id="r", entries=entries))
        with pytest.raises(JournalMoved) as moved:
            await run_backend.commit(AppendJournal(run_id="r", entries=entries, expected=1, seal=b"stale"))
        assert (moved.value.expected, moved.value.found) == (1, 2)
        assert await run_backend.get_run("r") == run
        await run_backend.commit(AppendJournal(run_id="r", entries=entries, expected=2, seal=b"second"))
        [listed] = await run_backend.list_runs(status=None, session_id=None, limit=9, after=0)
        assert (listed.seal, listed.journal_length, listed.revision) == (b"second", 4, 1)
        third = AppendJournal(run_id="r", entries=entries, expected=4, seal=b"third", previous_seal=b"second")
        with pytest.raises(JournalMoved):
            await run_backend.commit(replace(third, previous_seal=b"\x00first"))
        await run_backend.commit(third)

    async def test_an_event_number_is_not_used_up_by_a_failed_commit(self, run_backend: Backend) -> None:
        await run_backend.commit(make_run("r"))
        with pytest.raises(RunMoved):
            await run_backend.commit(AppendEvents(run_id="r", events=(("lost", b""),)), make_run("r"))
        await run_backend.commit(AppendEvents(run_id="r", events=(("stored", b""),)))
        assert [(event.seq, event.kind) for event in await run_backend.read_events("r", after=0, limit=9)] == [
            (1, "stored")
        ]

    async def test_concurrent_events_of_a_run_leave_no_gap(self, run_backend: Backend) -> None:
        await run_backend.commit(make_run("r"))
        await asyncio.gather(
            *(
                run_backend.commit(AppendEvents(run_id="r", events=((f"{task}", b"1"), (f"{task}", b"2"))))
                for task in range(12)
            )
        )
        events = await run_backend.read_events("r", after=0, limit=99)
        assert [event.seq for event in events] == list(range(1, 25))
        assert all(first.kind == second.kind for first, second in zip(events[::2], events[1::2], strict=True))

    async def test_the_turn_of_a_session_has_its_runs_and_its_latest_lease(self, run_backend: Backend) -> None:
        def save(run_id: str, status: str, expected: int = 0) -> SaveRun:
            return SaveRun(run_id=run_id, expected=expected, status=status, data=b"{}", session_id="s")

        turn = await run_backend.get_session_turn("s", lease="l")
        assert (turn.lease, turn.holder, turn.queued, turn.session) == (None, None, None, None)
        (lease,) = await run_backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        assert isinstance(lease, Lease)
        await run_backend.commit(save("a", "queued"), save("b", "queued"), Splice(session_id="s", add=(b"{}",)))
        await run_backend.commit(save("other", "next"), SaveRun(run_id="z", expected=0, status="queued", data=b"{}"))
        turn = await run_backend.get_session_turn("s", lease="l")
        assert (turn.lease, turn.holder, turn.queued and turn.queued.run_id) == (lease, None, "other")
        assert turn.session is not None
        assert turn.session.length == 1
        await run_backend.commit(save("other", "completed", 1), ReleaseLease(name="l", token=lease.token))
        turn = await run_backend.get_session_turn("s", lease="l")
        assert turn.lease is not None
        assert (turn.lease.owner, turn.lease.token) == ("", 1)
        assert turn.queued is not None
        assert turn.queued.run_id == "a"
        for status in ("running", "waiting", "woken", "blocked"):
            revision = (await run_backend.get_run("a")).revision  # type: ignore[union-attr]
            await run_backend.commit(save("a", status, revision))
            turn = await run_backend.get_session_turn("s", lease="l")
            assert turn.holder is not None
            assert (turn.holder.run_id, turn.holder.status) == ("a", status)
            assert turn.queued is not None
            assert turn.queued.run_id == "b"

    async def test_appending_to_a_journal_tells_its_end_if_the_backend_knows_it(self, run_backend: Backend) -> None:
        await run_backend.commit(SaveRun(run_id="r", expected=0, status="queued", data=b"{}"))
        for count in (1, 3):
            entries = tuple(("kind", b"%d" % number) for number in range(count))
            (end,) = await run_backend.commit(AppendJournal(run_id="r", entries=entries))
            stored = await run_backend.read_journal("r", after=0)
            assert end in (None, JournalEnd(stored[-1].seq, stored[-1].at))

    async def test_the_time_is_that_of_the_clock_of_leases(self, run_backend: Backend, clock: FakeClock) -> None:
        before = await run_backend.get_time()
        clock.advance(7)
        assert (before, await run_backend.get_time()) == (clock.now - 7, clock.now)


class LeaseClauses(StoreFixtures):
    """Leases with fencing tokens."""

    async def test_a_lease_has_an_owner_a_token_and_an_expiry(self, backend: Backend, clock: FakeClock) -> None:
        assert await backend.get_lease("l") is None
        (lease,) = await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        assert lease == Lease("l", "me", 1, clock.now + 30)
        assert await backend.get_lease("l") == lease

    async def test_a_held_lease_is_not_granted_to_another_owner(self, backend: Backend, clock: FakeClock) -> None:
        (lease,) = await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        clock.advance(29)
        with pytest.raises(LeaseHeld) as held:
            await backend.commit(AcquireLease(name="l", owner="you", ttl=30))
        assert isinstance(lease, Lease)
        assert (held.value.name, held.value.owner, held.value.expires_at) == ("l", "me", lease.expires_at)
        assert await backend.get_lease("l") == lease

    async def test_the_current_owner_keeps_its_token(self, backend: Backend, clock: FakeClock) -> None:
        await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        clock.advance(10)
        assert await backend.commit(AcquireLease(name="l", owner="me", ttl=30)) == [Lease("l", "me", 1, clock.now + 30)]

    async def test_an_expired_lease_is_granted_with_a_higher_token(self, backend: Backend, clock: FakeClock) -> None:
        await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        clock.advance(30)
        assert await backend.commit(AcquireLease(name="l", owner="you", ttl=5)) == [Lease("l", "you", 2, clock.now + 5)]

    async def test_the_owner_of_an_expired_lease_gets_a_new_token(self, backend: Backend, clock: FakeClock) -> None:
        await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        clock.advance(31)
        assert await backend.commit(AcquireLease(name="l", owner="me", ttl=30)) == [Lease("l", "me", 2, clock.now + 30)]

    async def test_an_expired_lease_can_be_renewed_unless_another_owner_acquired_it(
        self, backend: Backend, clock: FakeClock
    ) -> None:
        await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        clock.advance(40)
        (lease,) = await backend.commit(RenewLease(name="l", token=1, ttl=30))
        assert lease == Lease("l", "me", 1, clock.now + 30)
        assert await backend.get_lease("l") == lease
        clock.advance(40)
        await backend.commit(AcquireLease(name="l", owner="you", ttl=30))
        with pytest.raises(FenceLost) as lost:
            await backend.commit(RenewLease(name="l", token=1, ttl=30))
        assert (lost.value.name, lost.value.expected, lost.value.found) == ("l", 1, 2)

    async def test_a_released_lease_is_free_and_its_token_is_never_reused(self, backend: Backend) -> None:
        await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        assert await backend.commit(ReleaseLease(name="l", token=1)) == [None]
        assert await backend.get_lease("l") is None
        for op in (CheckFence("l", 1), RenewLease(name="l", token=1, ttl=30)):
            with pytest.raises(FenceLost):
                await backend.commit(op)
        (lease,) = await backend.commit(AcquireLease(name="l", owner="you", ttl=30))
        assert isinstance(lease, Lease)
        assert lease.token == 2

    async def test_releasing_a_lease_of_another_owner_has_no_effect(self, backend: Backend, clock: FakeClock) -> None:
        await backend.commit(ReleaseLease(name="l", token=1))
        await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        clock.advance(30)
        (lease,) = await backend.commit(AcquireLease(name="l", owner="you", ttl=30))
        await backend.commit(ReleaseLease(name="l", token=1))
        assert await backend.get_lease("l") == lease

    async def test_a_fence_refuses_the_writes_of_a_former_owner(self, backend: Backend, clock: FakeClock) -> None:
        await backend.commit(AcquireLease(name="l", owner="me", ttl=30))
        await backend.commit(CheckFence("l", 1), Splice(session_id="s", add=(b"mine",)))
        clock.advance(30)
        # No other owner has acquired it yet, so the write is still exclusive.
        await backend.commit(Splice(session_id="s", add=(b"late",)), CheckFence("l", 1))
        await backend.commit(AcquireLease(name="l", owner="you", ttl=30))
        lost = Splice(session_id="s", add=(b"lost",))
        with pytest.raises(FenceLost):
            await backend.commit(CheckFence("l", 1), lost)
        with pytest.raises(FenceLost):
            await backend.commit(lost, CheckFence("l", 1))
        assert await read_data(backend, "s") == [b"mine", b"late"]

    async def test_a_fence_on_a_missing_lease_is_lost(self, backend: Backend) -> None:
        with pytest.raises(FenceLost) as lost:
            await backend.commit(CheckFence("l", 1))
        assert lost.value.found == 0

    async def test_a_lease_and_a_fence_may_share_a_commit(self, backend: Backend) -> None:
        outcomes = await backend.commit(
            AcquireLease(name="l", owner="me", ttl=30), CheckFence("l", 1), Splice(session_id="s", add=(b"a",))
        )
        assert isinstance(outcomes[0], Lease)
        assert outcomes[1] is None
        assert await read_data(backend, "s") == [b"a"]

    async def test_one_of_many_concurrent_callers_gets_the_lease(self, backend: Backend) -> None:
        answers = await asyncio.gather(
            *(backend.commit(AcquireLease(name="l", owner=f"worker-{n}", ttl=30)) for n in range(8)),
            return_exceptions=True,
        )
        won = [answer for answer in answers if isinstance(answer, list)]
        lost = [answer for answer in answers if isinstance(answer, LeaseHeld)]
        assert (len(won), len(lost)) == (1, 7)
        assert await backend.get_lease("l") == won[0][0]

    async def test_one_of_two_connections_gets_the_lease(self, reopen_durable: Reopen) -> None:
        async with reopen_durable() as one, reopen_durable() as two:
            answers = await asyncio.gather(
                one.commit(AcquireLease(name="l", owner="one", ttl=30)),
                two.commit(AcquireLease(name="l", owner="two", ttl=30)),
                return_exceptions=True,
            )
            assert [type(answer) for answer in answers if isinstance(answer, Exception)] == [LeaseHeld]
            assert await one.get_lease("l") == await two.get_lease("l")
