# ruff: noqa: PT012 - the block that raises is what is tested
"""Scopes."""

import asyncio
import contextvars
import gc
from contextlib import asynccontextmanager, suppress

import pytest

from factories.lifecycle import ResourceLog, forever, turns
from standfast.base.errors import Closed, StandfastError
from standfast.lifecycle import NEVER, AlreadyStarted, CloseTimeout, Deadline, Scope


class TestTasks:
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

    async def test_a_failing_child_ends_the_scope_and_its_error_is_raised_as_it_is(self, log):
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
        log.check_balanced()

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

    async def test_a_child_that_is_cancelled_alone_does_not_affect_others(self, log):
        may_end = asyncio.Event()
        async with Scope() as scope:
            scope.start(forever()).cancel()
            scope.start(log.child("b", until=may_end))
            await turns()
            assert log == ["+b"]
            may_end.set()

    async def test_the_result_of_a_child_can_be_awaited(self):
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
            await scope.enter(ResourceLog().resource("a"))

    async def test_it_can_be_used_only_once(self):
        scope = Scope()
        async with scope:
            pass
        with pytest.raises(AlreadyStarted) as caught:
            await scope.__aenter__()
        assert isinstance(caught.value, StandfastError)


class TestResources:
    async def test_they_are_released_in_reverse_after_the_children(self, log):
        async with Scope() as scope:
            assert await scope.enter(log.resource("a")) == "a"
            scope.push_callback(lambda: log.append("pushed"))
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

    async def test_each_release_receives_the_error(self):
        reported = []

        class Asks:
            async def __aenter__(self):
                return self

            async def __aexit__(self, kind, error, trace):
                reported.append(error)

        async def fails():
            raise KeyError("child")

        with pytest.raises(KeyError) as caught:
            async with Scope() as scope:
                await scope.enter(Asks())
                scope.start(fails())
        assert reported == [caught.value]
        async with Scope() as scope:
            await scope.enter(Asks())
        assert reported[1:] == [None]

    async def test_a_release_may_suppress_or_replace_the_error(self):
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
            scope.push_callback(lambda: log.append("now"))
            scope.push_callback(later)
        assert log == ["later", "now"]

    async def test_a_callback_can_be_added_even_to_a_cancelled_scope(self, log):
        async with Scope() as scope:
            scope.cancel()
            scope.push_callback(lambda: log.append("released"))
        assert log == ["released"]
        with pytest.raises(Closed):
            scope.push_callback(lambda: None)
        with pytest.raises(Closed):
            Scope().push_callback(lambda: None)


class TestTimeout:
    async def test_a_child_that_does_not_stop_is_reported_as_still_running(self, log):
        may_end = asyncio.Event()

        async def stubborn():
            while not may_end.is_set():
                try:
                    await may_end.wait()
                except asyncio.CancelledError:
                    log.append("ignored")

        with pytest.raises(CloseTimeout) as caught:
            async with Scope(grace=0) as scope:
                await scope.enter(log.resource("r"))
                task = scope.start(stubborn(), name="stubborn")
                scope.start(log.child("obedient"), name="obedient")
                await asyncio.sleep(0)
                scope.cancel()
        assert caught.value.still_running == ("stubborn",)
        assert caught.value.interrupted == ()
        assert "-r" in log
        assert "-obedient" in log
        assert isinstance(caught.value, TimeoutError)
        may_end.set()
        await asyncio.wait({task})

    async def test_a_later_error_of_a_child_still_running_is_reported_by_the_loop(self):
        reports = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))
        may_end = asyncio.Event()

        async def stubborn():
            while not may_end.is_set():
                with suppress(asyncio.CancelledError):
                    await may_end.wait()
            raise KeyError("late")

        with pytest.raises(CloseTimeout):
            async with Scope(grace=0) as scope:
                task = scope.start(stubborn())
                await asyncio.sleep(0)
                scope.cancel()
        may_end.set()
        await asyncio.wait({task})
        del task, scope
        gc.collect()
        assert [type(report["exception"]) for report in reports] == [KeyError]

    async def test_a_cancellation_at_the_deadline_is_not_lost(self):
        async def cancel_too():
            try:
                await forever()
            finally:
                asyncio.current_task().cancel()  # The scope cannot distinguish this from a cancellation from outside.

        async def body():
            async with Scope(grace=0) as scope:
                scope.push_callback(cancel_too)

        task = asyncio.create_task(body())
        await asyncio.wait({task})
        assert task.cancelled()
        assert task.cancelling() == 1

    async def test_a_release_that_takes_too_long_is_interrupted_and_the_others_still_run(self, log):
        @asynccontextmanager
        async def slow():
            yield
            await forever()

        async def also_slow():
            await forever()

        with pytest.raises(CloseTimeout) as caught:
            async with Scope(grace=0) as scope:
                await scope.enter(log.resource("first", awaits=3))
                await scope.enter(slow(), name="slow resource")
                scope.push_callback(also_slow)
                await scope.enter(log.resource("last", awaits=3))
        assert caught.value.interrupted == (also_slow.__qualname__, "slow resource")
        assert caught.value.still_running == ()
        assert log == ["+first", "+last", "-last", "-first"]
        assert asyncio.current_task().cancelling() == 0

    async def test_a_generator_context_is_named_after_its_function(self):
        @asynccontextmanager
        async def hanging():
            yield
            await forever()

        with pytest.raises(CloseTimeout) as caught:
            async with Scope(grace=0) as scope:
                await scope.enter(hanging())
        assert caught.value.interrupted[0].endswith("hanging")

    async def test_a_timeout_of_closing_does_not_hide_the_error(self):
        with pytest.raises(ExceptionGroup) as caught:
            async with Scope(grace=0) as scope:
                scope.push_callback(forever)
                raise KeyError
        assert [type(e) for e in caught.value.exceptions] == [KeyError, CloseTimeout]

    async def test_a_timeout_of_closing_does_not_hide_a_cancellation(self):
        async def body():
            async with Scope(grace=0) as scope:
                scope.push_callback(forever)
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
        assert [type(e) for e in caught.value.exceptions] == [KeyError, CloseTimeout]
        may_end.set()
        await asyncio.wait({task})

    async def test_an_earlier_deadline_given_to_cancel_is_used(self):
        passed = Deadline.after(0)
        with pytest.raises(CloseTimeout):
            async with Scope(grace=3600) as scope:
                scope.push_callback(forever)
                scope.cancel(deadline=passed)
                assert scope.deadline is passed
        async with Scope(grace=0) as scope:
            scope.cancel(deadline=Deadline.after(3600))
            assert scope.deadline.remaining() < 1

    async def test_releases_can_read_the_budget_they_share(self):
        seen = []
        async with Scope(grace=60) as scope:
            assert scope.deadline is NEVER
            scope.push_callback(lambda: seen.append(scope.deadline))
            scope.push_callback(lambda: seen.append(scope.deadline))
        assert seen[0] is seen[1]
        assert 59 < seen[0].remaining() <= 60

    async def test_a_timeout_of_the_release_itself_is_its_own_error(self):
        async def impatient():
            async with asyncio.timeout(0):
                await forever()

        with pytest.raises(TimeoutError) as caught:
            async with Scope(grace=60) as scope:
                scope.push_callback(impatient)
        assert not isinstance(caught.value, CloseTimeout)
