# ruff: noqa: PT012 - the block that raises is what is tested
"""What scopes and deadlines promise."""

import asyncio
import contextvars
import gc
import math
import sys
import time
from contextlib import asynccontextmanager, nullcontext, suppress

import pytest
from witness import Log, forever, turns

from holdfast.base.errors import Closed, HoldfastError
from holdfast.lifecycle import NEVER, AlreadyStarted, CutOff, Deadline, Scope
from holdfast.testing.cancelling import cancel_at_every_await


@pytest.fixture
def log():
    return Log()


class TestDeadline:
    async def test_it_counts_down_and_passes(self):
        deadline = Deadline.after(60)
        assert 59 < deadline.remaining() <= 60
        assert not deadline.passed
        assert Deadline.after(0).passed
        assert Deadline.after(-5).remaining() == 0.0

    async def test_the_one_that_never_comes_has_no_remaining_time(self):
        assert Deadline.after(None) == NEVER
        assert NEVER.remaining() is None
        assert not NEVER.passed
        async with NEVER.timeout():
            await asyncio.sleep(0)

    async def test_the_earlier_of_two_is_their_minimum(self):
        soon, late = Deadline.after(1), Deadline.after(2)
        assert min(late, soon, NEVER) is soon

    async def test_a_step_ends_with_the_whole_at_the_latest(self):
        whole = Deadline.after(10)
        assert whole.within(60) is whole
        assert whole.within(None) is whole
        assert 4 < whole.within(5).remaining() <= 5

    async def test_its_timeout_interrupts_what_takes_longer(self):
        with pytest.raises(TimeoutError):
            async with Deadline.after(0).timeout():
                await forever()

    def test_it_can_be_made_outside_a_loop_and_used_inside(self):
        deadline = Deadline.after(60)
        assert abs(deadline.at - (time.monotonic() + 60)) < 1

        async def remaining():
            return deadline.remaining()

        assert 59 < asyncio.run(remaining()) <= 60

    def test_it_follows_the_clock_of_the_running_loop(self):
        loop = asyncio.new_event_loop()
        loop.time = lambda: 1000.0

        async def made():
            return Deadline.after(5)

        try:
            assert loop.run_until_complete(made()).at == 1005.0
        finally:
            loop.close()


class TestTasksOfAScope:
    async def test_leaving_normally_waits_for_the_children(self, log):
        may_end = asyncio.Event()
        async with Scope() as scope:
            scope.start(log.child("a", until=may_end))
            scope.start(log.child("b", until=may_end))
            asyncio.get_running_loop().call_soon(may_end.set)
        assert log == ["+a", "+b", "-a", "-b"]

    async def test_leaving_by_an_exception_cancels_the_children_and_waits_for_them(self, log):
        with pytest.raises(ZeroDivisionError):
            async with Scope() as scope:
                scope.start(log.child("a"))
                await asyncio.sleep(0)
                raise ZeroDivisionError
        assert log == ["+a", "-a"]

    async def test_the_body_gets_back_the_very_error_it_raised(self):
        error = ValueError("mine")
        with pytest.raises(ValueError) as caught:
            async with Scope() as scope:
                scope.start(forever())
                raise error
        assert caught.value is error
        assert error.__context__ is None

    async def test_a_failing_child_ends_the_scope_and_its_error_is_raised_plain(self, log):
        async def fails():
            await asyncio.sleep(0)
            raise ZeroDivisionError("mine")

        with pytest.raises(ZeroDivisionError, match="mine"):
            async with Scope() as scope:
                scope.start(log.child("sibling"))
                scope.start(fails())
                await forever()
        assert log == ["+sibling", "-sibling"]
        assert asyncio.current_task().cancelling() == 0

    async def test_a_child_that_fails_while_the_owner_waits_ends_the_siblings(self, log):
        async def fails():
            await asyncio.sleep(0)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            async with Scope() as scope:
                scope.start(log.child("sibling"))
                scope.start(fails())
        log.balanced()

    async def test_the_error_of_a_child_keeps_its_own_context(self):
        async def fails():
            try:
                raise KeyError("first")
            except KeyError:
                raise ValueError("second")  # noqa: B904

        with pytest.raises(ValueError) as caught:
            async with Scope() as scope:
                scope.start(fails())
                await forever()
        assert isinstance(caught.value.__context__, KeyError)

    async def test_several_errors_are_raised_together(self):
        async def fails(error):
            try:
                await forever()
            finally:
                raise error

        with pytest.raises(ExceptionGroup) as caught:
            async with Scope() as scope:
                scope.start(fails(KeyError()))
                scope.start(fails(IndexError()))
                await asyncio.sleep(0)
                raise ValueError
        assert [type(e) for e in caught.value.exceptions[:1]] == [ValueError]
        assert {type(e) for e in caught.value.exceptions} == {ValueError, KeyError, IndexError}

    async def test_a_child_that_is_cancelled_alone_harms_nobody(self, log):
        may_end = asyncio.Event()
        async with Scope() as scope:
            scope.start(forever()).cancel()
            scope.start(log.child("b", until=may_end))
            await turns()
            assert log == ["+b"]
            may_end.set()

    async def test_its_result_can_be_awaited(self):
        async def answers():
            return 42

        async with Scope() as scope:
            task = scope.start(answers(), name="the answer")
            assert task.get_name() == "the answer"
            assert await task == 42

    async def test_a_child_may_start_a_sibling_while_the_owner_waits(self, log):
        async with Scope() as scope:

            async def starts_another():
                await asyncio.sleep(0)
                scope.start(log.child("late", until=may_end))

            may_end = asyncio.Event()
            scope.start(starts_another())
            asyncio.get_running_loop().call_later(0, may_end.set)
        assert log == ["+late", "-late"]

    @pytest.mark.parametrize("when", ["before", "cancelled", "after"])
    async def test_nothing_starts_in_a_scope_that_is_not_open(self, when):
        scope = Scope()
        if when != "before":
            async with scope:
                if when == "cancelled":
                    scope.cancel()
                    with pytest.raises(Closed):
                        scope.start(forever())
        with pytest.raises(Closed):
            scope.start(forever())
        with pytest.raises(Closed):
            await scope.enter(Log().resource("a"))

    async def test_it_serves_once(self):
        scope = Scope()
        async with scope:
            pass
        with pytest.raises(AlreadyStarted) as caught:
            await scope.__aenter__()
        assert isinstance(caught.value, HoldfastError)


class TestCancellingAScope:
    async def test_cancel_from_the_body_ends_the_children_and_lets_the_body_go_on(self, log):
        async with Scope() as scope:
            scope.start(log.child("a"))
            await asyncio.sleep(0)
            scope.cancel()
            await turns()
            log.append("body")
        assert log == ["+a", "-a", "body"]
        assert asyncio.current_task().cancelling() == 0

    async def test_cancel_from_a_child_ends_the_body_too_and_is_no_error(self, log):
        async def enough():
            await asyncio.sleep(0)
            scope.cancel()

        async with Scope() as scope:
            scope.start(log.child("a"))
            scope.start(enough())
            await forever()
        log.balanced()
        assert asyncio.current_task().cancelling() == 0

    async def test_cancel_may_be_repeated_and_comes_too_late_without_harm(self):
        async with Scope() as scope:
            scope.start(forever())
            scope.cancel()
            scope.cancel()
        scope.cancel()
        await turns()
        assert asyncio.current_task().cancelling() == 0

    async def test_a_body_that_ignores_the_cancellation_still_ends_in_peace(self):
        async with Scope() as scope:
            scope.start(forever())
            asyncio.get_running_loop().call_soon(scope.cancel)
            with suppress(asyncio.CancelledError):
                await forever()
            await turns()
        assert asyncio.current_task().cancelling() == 0
        await turns()

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks start eagerly since 3.12")
    @pytest.mark.parametrize("ends", ["cancelling", "failing"])
    async def test_an_eager_child_that_ends_the_scope_does_not_disturb_the_releases(self, log, ends):
        async def child():
            if ends == "failing":
                raise KeyError
            scope.cancel()

        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        try:
            with pytest.raises(KeyError) if ends == "failing" else nullcontext():
                async with Scope() as scope:
                    scope.push(lambda: log.append("undisturbed"))
                    scope.push(turns)
                    scope.start(child())
        finally:
            asyncio.get_running_loop().set_task_factory(None)
        assert log == ["undisturbed"]
        assert asyncio.current_task().cancelling() == 0

    async def test_a_cancellation_from_outside_wins_over_one_from_inside(self):
        async def body():
            async with Scope() as scope:
                inside.set_result(scope)
                await forever()

        inside = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(body())
        scope = await inside
        scope.cancel()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    async def test_an_outer_scope_that_is_cancelled_ends_an_inner_one_that_is_closing(self, log):
        async with Scope() as outer:
            async with Scope() as inner:
                inner.start(log.child("a"))
                asyncio.get_running_loop().call_later(0, outer.cancel)
            log.append("not reached")
        assert log == ["+a", "-a"]
        assert asyncio.current_task().cancelling() == 0

    async def test_a_cancellation_while_the_owner_waits_ends_the_children_and_is_raised_again(self, log):
        async def body():
            async with Scope() as scope:
                await scope.enter(log.resource("r"))
                scope.start(log.child("a"))

        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert log == ["+r", "+a", "-a", "-r"]

    async def test_releases_after_a_held_back_cancellation_are_not_disturbed(self, log):
        undisturbed = []

        async def release():
            await turns()
            undisturbed.append(True)

        async def body():
            async with Scope() as scope:
                scope.push(release)
                scope.start(log.child("a"))

        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert undisturbed

    async def test_a_cancellation_during_a_release_interrupts_that_one_alone(self, log):
        releasing = asyncio.Event()

        async def slow():
            releasing.set()
            try:
                await forever()
            finally:
                log.append("slow")

        async def body():
            async with Scope() as scope:
                await scope.enter(log.resource("first"))
                scope.push(slow)

        task = asyncio.create_task(body())
        await releasing.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert log == ["+first", "slow", "-first"]

    async def test_a_release_that_swallows_the_cancellation_does_not_lose_it(self):
        releasing = asyncio.Event()

        async def swallows():
            releasing.set()
            with suppress(asyncio.CancelledError):
                await forever()

        async def body():
            async with Scope() as scope:
                scope.push(swallows)

        task = asyncio.create_task(body())
        await releasing.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    async def test_a_release_that_fails_does_not_replace_the_cancellation(self, log):
        async def body():
            async with Scope() as scope:
                await scope.enter(log.resource("r", release_fails=KeyError("release")))
                await forever()

        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    @pytest.mark.parametrize("when", ["in the body", "while waiting"])
    async def test_errors_beside_a_cancellation_are_its_cause(self, when):
        async def fails():
            try:
                await forever()
            finally:
                raise KeyError("child")

        async def body():
            try:
                async with Scope() as scope:
                    scope.start(fails())
                    if when == "in the body":
                        await forever()
            except asyncio.CancelledError as cancelled:
                causes.append(cancelled.__cause__)
                raise

        causes = []
        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert isinstance(causes[0], KeyError)

    async def test_the_body_s_error_beside_a_later_cancellation_is_its_cause(self):
        stubborn = asyncio.Event()

        async def cleans_up():
            try:
                await forever()
            finally:
                await stubborn.wait()

        async def body():
            try:
                async with Scope() as scope:
                    scope.start(cleans_up())
                    await asyncio.sleep(0)
                    raise ValueError("body")
            except asyncio.CancelledError as cancelled:
                causes.append(cancelled.__cause__)
                raise

        causes = []
        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await turns()
        assert not task.done()
        stubborn.set()
        await asyncio.wait({task})
        assert task.cancelled()
        assert isinstance(causes[0], ValueError)

    async def test_a_timeout_around_a_scope_stays_a_timeout(self, log):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0), Scope() as scope:
                await scope.enter(log.resource("r", awaits=0))
                scope.start(log.child("a"))
                await forever()
        log.balanced()
        assert asyncio.current_task().cancelling() == 0

    async def test_a_timeout_held_by_a_scope_stays_a_timeout(self):
        with pytest.raises(TimeoutError):
            async with Scope() as scope:
                await scope.enter(asyncio.timeout(0))
                await forever()
        assert asyncio.current_task().cancelling() == 0

    async def test_a_cancellation_that_the_body_handled_is_not_raised_again(self):
        async def body():
            async with Scope():
                with suppress(asyncio.CancelledError):
                    await forever()
            return "handled"

        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        assert await task == "handled"

    async def test_a_task_cancelled_once_can_use_scopes_in_its_cleanup(self, log):
        async def body():
            try:
                await forever()
            finally:
                async with Scope() as scope:
                    await scope.enter(log.resource("r"))
                    scope.start(log.child("a"))
                    await asyncio.sleep(0)
                    scope.cancel()
                log.append("clean")

        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert log == ["+r", "+a", "-a", "-r", "clean"]

    async def test_a_generator_closed_inside_a_scope_is_closed(self, log):
        async def numbers():
            async with Scope() as scope:
                scope.start(log.child("a"))
                await asyncio.sleep(0)
                yield 1

        generator = numbers()
        assert await anext(generator) == 1
        await generator.aclose()
        assert log == ["+a", "-a"]

    async def test_wherever_the_owner_is_cancelled_nothing_is_left(self, log):
        may_end = asyncio.Event()
        may_end.set()

        async def scenario():
            log.clear()
            async with Scope() as scope:
                await scope.enter(log.resource("r1"))
                scope.start(log.child("a", until=may_end))
                await scope.enter(log.resource("r2"))
                async with Scope() as inner:
                    await inner.enter(log.resource("r3"))
                    inner.start(log.child("b", until=may_end))
                scope.start(log.child("c"))
                await asyncio.sleep(0)
                scope.cancel()

        def check():
            log.balanced()
            releases = [entry for entry in log if entry in ("-r1", "-r2", "-r3")]
            assert releases == sorted(releases, reverse=True)
            if "-c" in log:
                assert log.index("-c") < log.index("-r2")

        assert await cancel_at_every_await(scenario, check=check) > 8

    async def test_wherever_the_owner_is_cancelled_a_child_s_failure_loses_nothing(self, log):
        async def fails():
            await turns(2)
            raise KeyError

        async def scenario():
            log.clear()
            try:
                async with Scope() as scope:
                    await scope.enter(log.resource("r"))
                    scope.start(log.child("sibling"))
                    scope.start(fails())
                    await forever()
            except KeyError:
                pass

        assert await cancel_at_every_await(scenario, check=log.balanced) > 3


class TestResourcesOfAScope:
    async def test_they_are_released_in_reverse_after_the_children(self, log):
        async with Scope() as scope:
            assert await scope.enter(log.resource("a")) == "a"
            scope.push(lambda: log.append("pushed"))
            await scope.enter(log.resource("b"))
            scope.start(log.child("child"))
            await asyncio.sleep(0)
            scope.cancel()
        assert log == ["+a", "+b", "+child", "-child", "-b", "pushed", "-a"]

    @pytest.mark.parametrize("count", range(1, 6))
    async def test_a_failed_acquisition_releases_exactly_those_before_it(self, log, count):
        with pytest.raises(ZeroDivisionError):
            async with Scope() as scope:
                for n in range(1, 6):
                    await scope.enter(log.resource(n, fails=ZeroDivisionError() if n == count else None))
        before = range(1, count)
        assert log == [f"+{n}" for n in before] + [f"-{n}" for n in reversed(before)]

    @pytest.mark.parametrize("failing", [{1}, {2}, {3}, {1, 2}, {2, 3}, {1, 2, 3}])
    async def test_a_failing_release_does_not_skip_the_others(self, log, failing):
        with pytest.raises(KeyError) as caught:
            async with Scope() as scope:
                for n in (1, 2, 3):
                    await scope.enter(log.resource(n, release_fails=KeyError(n) if n in failing else None))
        assert log == ["+1", "+2", "+3", "-3", "-2", "-1"]
        errors, error = [], caught.value
        while error is not None:
            errors.append(error.args[0])
            error = error.__context__
        assert errors == sorted(failing), "the last is raised and the ones before are its context"

    async def test_each_is_told_what_happened(self):
        told = []

        class Asks:
            async def __aenter__(self):
                return self

            async def __aexit__(self, kind, error, trace):
                told.append(error)

        async def fails():
            raise KeyError("child")

        with pytest.raises(KeyError) as caught:
            async with Scope() as scope:
                await scope.enter(Asks())
                scope.start(fails())
        assert told == [caught.value]
        async with Scope() as scope:
            await scope.enter(Asks())
        assert told[1:] == [None]

    async def test_one_may_swallow_or_replace_the_error(self):
        @asynccontextmanager
        async def translating():
            try:
                yield
            except KeyError as error:
                raise ValueError from error

        @asynccontextmanager
        async def swallowing():
            with suppress(ValueError):
                yield

        async with Scope() as scope:
            await scope.enter(swallowing())
            await scope.enter(translating())
            raise KeyError
        with pytest.raises(ValueError):
            async with Scope() as scope:
                await scope.enter(translating())
                raise KeyError

    async def test_context_variables_are_reset_where_they_were_set(self):
        current = contextvars.ContextVar("current", default="outside")

        @asynccontextmanager
        async def setting():
            token = current.set("inside")
            yield
            current.reset(token)

        async with Scope() as scope:
            await scope.enter(setting())
            assert current.get() == "inside"
        assert current.get() == "outside"

    async def test_a_pushed_callback_may_be_a_coroutine_function_or_not(self, log):
        async def later():
            await asyncio.sleep(0)
            log.append("later")

        async with Scope() as scope:
            scope.push(lambda: log.append("now"))
            scope.push(later)
        assert log == ["later", "now"]

    async def test_what_was_acquired_by_hand_finds_its_release_even_in_a_cancelled_scope(self, log):
        async with Scope() as scope:
            scope.cancel()
            scope.push(lambda: log.append("released"))
        assert log == ["released"]
        with pytest.raises(Closed):
            scope.push(lambda: None)
        with pytest.raises(Closed):
            Scope().push(lambda: None)


class TestClosingAScopeInTime:
    async def test_a_child_that_does_not_stop_is_reported_and_left(self, log):
        may_end = asyncio.Event()

        async def stubborn():
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    log.append("ignored")

        with pytest.raises(CutOff) as caught:
            async with Scope(grace=0) as scope:
                await scope.enter(log.resource("r"))
                task = scope.start(stubborn(), name="stubborn")
                scope.start(log.child("obedient"), name="obedient")
                await asyncio.sleep(0)
                scope.cancel()
        assert caught.value.left == ("stubborn",)
        assert caught.value.cut == ()
        assert "-r" in log
        assert "-obedient" in log
        assert isinstance(caught.value, TimeoutError)
        may_end.set()
        await asyncio.wait({task})

    async def test_the_late_failure_of_a_child_left_behind_is_reported_by_the_loop(self):
        reports = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        may_end = asyncio.Event()

        async def stubborn():
            while not may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await may_end.wait()
            raise KeyError("late")

        with pytest.raises(CutOff):
            async with Scope(grace=0) as scope:
                task = scope.start(stubborn())
                await asyncio.sleep(0)
                scope.cancel()
        may_end.set()
        await asyncio.wait({task})
        del task, scope
        gc.collect()
        assert [type(report["exception"]) for report in reports] == [KeyError]

    async def test_a_cancellation_in_the_moment_of_running_out_of_time_is_not_lost(self):
        async def cancel_too():
            try:
                await forever()
            finally:
                asyncio.current_task().cancel()  # From outside, for all the scope can know.

        async def body():
            async with Scope(grace=0) as scope:
                scope.push(cancel_too)

        task = asyncio.create_task(body())
        await asyncio.wait({task})
        assert task.cancelled()
        assert task.cancelling() == 1

    async def test_a_release_that_takes_too_long_is_cut_off_and_the_others_still_run(self, log):
        @asynccontextmanager
        async def slow():
            yield
            await forever()

        async def also_slow():
            await forever()

        with pytest.raises(CutOff) as caught:
            async with Scope(grace=0) as scope:
                await scope.enter(log.resource("first", awaits=3))
                await scope.enter(slow(), name="slow resource")
                scope.push(also_slow)
                await scope.enter(log.resource("last", awaits=3))
        assert caught.value.cut == (also_slow.__qualname__, "slow resource")
        assert caught.value.left == ()
        assert log == ["+first", "+last", "-last", "-first"]
        assert asyncio.current_task().cancelling() == 0

    async def test_a_generator_context_is_named_after_its_function(self):
        @asynccontextmanager
        async def hanging():
            yield
            await forever()

        with pytest.raises(CutOff) as caught:
            async with Scope(grace=0) as scope:
                await scope.enter(hanging())
        assert caught.value.cut[0].endswith("hanging")

    async def test_running_out_of_time_does_not_hide_the_error(self):
        with pytest.raises(ExceptionGroup) as caught:
            async with Scope(grace=0) as scope:
                scope.push(forever)
                raise KeyError
        assert [type(e) for e in caught.value.exceptions] == [KeyError, CutOff]

    async def test_running_out_of_time_does_not_hide_a_cancellation(self):
        async def body():
            async with Scope(grace=0) as scope:
                scope.push(forever)
                scope.start(forever())

        task = asyncio.create_task(body())
        await turns()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert task.cancelling() == 1

    async def test_waiting_for_children_that_end_by_themselves_is_not_bounded(self, log):
        may_end = asyncio.Event()
        async with Scope(grace=0) as scope:
            scope.start(log.child("a", until=may_end))
            asyncio.get_running_loop().call_later(0.1, may_end.set)
        assert log == ["+a", "-a"]

    async def test_the_budget_begins_when_a_child_fails_while_the_owner_waits(self):
        may_end = asyncio.Event()

        async def stubborn():
            while not may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await may_end.wait()

        async def fails():
            await asyncio.sleep(0)
            raise KeyError

        with pytest.raises(ExceptionGroup) as caught:
            async with Scope(grace=0) as scope:
                task = scope.start(stubborn())
                scope.start(fails())
        assert [type(e) for e in caught.value.exceptions] == [KeyError, CutOff]
        may_end.set()
        await asyncio.wait({task})

    async def test_a_deadline_handed_down_is_kept_if_it_is_sooner(self):
        passed = Deadline.after(0)
        with pytest.raises(CutOff):
            async with Scope(grace=3600) as scope:
                scope.push(forever)
                scope.cancel(deadline=passed)
                assert scope.deadline is passed
        async with Scope(grace=0) as scope:
            scope.cancel(deadline=Deadline.after(3600))
            assert scope.deadline.remaining() < 1

    async def test_releases_can_read_the_budget_they_share(self):
        seen = []
        async with Scope(grace=60) as scope:
            assert scope.deadline is NEVER
            scope.push(lambda: seen.append(scope.deadline))
            scope.push(lambda: seen.append(scope.deadline))
        assert seen[0] is seen[1]
        assert 59 < seen[0].remaining() <= 60

    async def test_a_timeout_of_the_release_itself_is_its_own_error(self):
        async def impatient():
            async with asyncio.timeout(0):
                await forever()

        with pytest.raises(TimeoutError) as caught:
            async with Scope(grace=60) as scope:
                scope.push(impatient)
        assert not isinstance(caught.value, CutOff)


def test_the_never_deadline_is_infinite():
    assert math.isinf(NEVER.at)
