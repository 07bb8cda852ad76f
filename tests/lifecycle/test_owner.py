"""Owners."""

import asyncio
import contextvars
import gc
from contextlib import asynccontextmanager, suppress

import pytest

from factories.lifecycle import forever, turns
from standfast.base.errors import Closed
from standfast.lifecycle import NEVER, AlreadyStarted, CloseTimeout, Deadline, Owner, Scope
from standfast.testing.interruption import cancel_at_every_await


async def test_it_opens_in_its_task_and_closes_from_another(log):
    owner = Owner(lambda: log.resource("r"), name="thing")
    assert await owner.start() == "r"
    assert not owner.closed
    async with asyncio.TaskGroup() as group:
        group.create_task(owner.close())
    assert owner.closed
    assert log == ["+r", "-r"]


async def test_entering_and_leaving_happen_in_the_same_task():
    tasks = []
    current = contextvars.ContextVar("current", default="outside")

    @asynccontextmanager
    async def noting():
        tasks.append(asyncio.current_task())
        token = current.set("inside")
        async with asyncio.timeout(60):
            yield
        current.reset(token)
        tasks.append(asyncio.current_task())

    owner = Owner(noting)
    await owner.start()
    await asyncio.create_task(owner.close())
    assert tasks[0] is tasks[1]
    assert current.get() == "outside"


async def test_the_constructor_does_nothing(log):
    owner = Owner(lambda: log.resource("r"))
    assert not owner.closed
    assert not owner.closing
    assert log == []


async def test_close_may_be_repeated(log):
    owner = Owner(lambda: log.resource("r"))
    await owner.start()
    await owner.close()
    await owner.close()
    await owner.wait()
    assert log == ["+r", "-r"]


async def test_all_callers_of_close_wait_for_the_same_end(log):
    owner = Owner(lambda: log.resource("r", awaits=5))
    await owner.start()

    async def close():
        await owner.close()
        assert log[-1] == "-r"

    await asyncio.gather(*(close() for _ in range(10)))
    assert log == ["+r", "-r"]


async def test_close_requests_the_end_and_then_waits(log):
    may_end = asyncio.Event()

    @asynccontextmanager
    async def slow():
        yield
        await may_end.wait()

    owner = Owner(slow)
    await owner.start()
    closing = asyncio.create_task(owner.close())
    await turns()
    assert owner.closing
    assert not owner.closed
    assert not closing.done()
    may_end.set()
    await closing
    assert owner.closed


async def test_close_from_a_task_inside_does_not_wait_for_itself(log):
    opened = asyncio.Event()

    @asynccontextmanager
    async def with_pump():
        async with Scope() as scope:
            await scope.enter(log.resource("r"))

            async def pump():
                await opened.wait()
                await owner.close()
                log.append("asked")

            scope.start(pump())
            yield

    owner = Owner(with_pump)
    await owner.start()
    opened.set()
    await owner.wait()
    assert log == ["+r", "asked", "-r"]


async def test_the_owner_s_own_task_may_close_it():
    @asynccontextmanager
    async def closes_itself():
        yield
        await owner.close()

    owner = Owner(closes_itself)
    await owner.start()
    await owner.close()
    assert owner.closed


async def test_a_task_inside_one_owner_waits_for_another(log):
    other = Owner(lambda: log.resource("other", awaits=5))
    await other.start()

    @asynccontextmanager
    async def closing_the_other():
        async with Scope() as scope:

            async def pump():
                await other.close()
                assert other.closed
                log.append("waited")

            scope.start(pump())
            yield

    owner = Owner(closing_the_other)
    await owner.start()
    await owner.close()
    assert log[-2:] == ["-other", "waited"]


@pytest.mark.parametrize("count", range(1, 5))
async def test_a_failed_acquisition_releases_exactly_those_before_it(log, count):
    @asynccontextmanager
    async def several():
        async with Scope() as scope:
            for n in range(1, 5):
                await scope.enter(log.resource(n, fails=ZeroDivisionError() if n == count else None))
            yield

    owner = Owner(several)
    with pytest.raises(ZeroDivisionError):
        await owner.start()
    before = range(1, count)
    assert log == [f"+{n}" for n in before] + [f"-{n}" for n in reversed(before)]
    assert owner.closed
    await owner.close()


async def test_an_error_of_the_factory_is_raised_by_start():
    def factory():
        raise ZeroDivisionError

    owner = Owner(factory)
    with pytest.raises(ZeroDivisionError):
        await owner.start()
    await owner.close()


async def test_an_error_inside_is_raised_to_every_caller_of_close_and_wait(log):
    @asynccontextmanager
    async def with_pump():
        async with Scope() as scope:
            await scope.enter(log.resource("r"))

            async def pump():
                await fail.wait()
                raise KeyError("pump")

            scope.start(pump())
            yield

    fail = asyncio.Event()
    owner = Owner(with_pump)
    await owner.start()
    fail.set()
    for _ in range(2):
        with pytest.raises(KeyError, match="pump"):
            await owner.wait()
        with pytest.raises(KeyError, match="pump"):
            await owner.close()
    assert owner.closed
    log.check_balanced()


async def test_an_error_of_a_release_is_raised_by_close(log):
    owner = Owner(lambda: log.resource("r", release_fails=KeyError("release")))
    await owner.start()
    with pytest.raises(KeyError, match="release"):
        await owner.close()
    assert owner.closed


async def test_it_can_be_used_only_once(log):
    owner = Owner(lambda: log.resource("r"))
    await owner.start()
    with pytest.raises(AlreadyStarted):
        await owner.start()
    await owner.close()
    with pytest.raises(Closed):
        await owner.start()


async def test_it_does_not_start_after_close(log):
    owner = Owner(lambda: log.resource("r"))
    await owner.wait()
    await owner.close()
    assert owner.closed
    with pytest.raises(Closed):
        await owner.start()
    assert log == []


async def test_close_cancels_an_opening_in_progress(log):
    @asynccontextmanager
    async def hanging():
        async with Scope() as scope:
            await scope.enter(log.resource("r"))
            await forever()
            yield

    owner = Owner(hanging)
    starting = asyncio.create_task(owner.start())
    await turns()
    assert log == ["+r"]
    await owner.close()
    assert log == ["+r", "-r"]
    with pytest.raises(Closed):
        await starting


async def test_whenever_it_is_closed_while_starting_start_raises_or_returns_the_value(log):
    heard = []
    for after in range(12):
        log.clear()
        owner = Owner(lambda: log.resource("r", awaits=3))
        starting = asyncio.create_task(owner.start())
        await turns(after)
        await owner.close()
        assert owner.closed
        log.check_balanced()
        await asyncio.wait({starting})
        heard.append("value" if starting.exception() is None else type(starting.exception()))
    assert heard == sorted(heard, key=lambda h: h == "value"), "once open, it stays with the value"
    assert set(heard) == {Closed, "value"}


@asynccontextmanager
async def stubborn(log):
    """Open although it was cancelled."""
    with suppress(asyncio.CancelledError):
        await forever()
    async with log.resource("r"):
        yield


async def test_an_opening_that_ignores_cancellation_is_closed_once_it_is_open(log):
    owner = Owner(lambda: stubborn(log))
    starting = asyncio.create_task(owner.start())
    await turns()
    await owner.close()
    assert log == ["+r", "-r"]
    with pytest.raises(Closed):
        await starting


async def test_a_cancelled_start_leaves_nothing_open(log):
    @asynccontextmanager
    async def hanging():
        async with Scope() as scope:
            await scope.enter(log.resource("r", awaits=5))
            await forever()
            yield

    owner = Owner(hanging)
    starting = asyncio.create_task(owner.start())
    await turns()
    starting.cancel()
    await turns(1)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    assert owner.closed
    assert log == ["+r", "-r"]
    await owner.close()


async def test_a_cancelled_start_ends_even_an_opening_that_ignores_it(log):
    owner = Owner(lambda: stubborn(log))
    starting = asyncio.create_task(owner.start())
    await turns()
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    assert owner.closed
    assert log == ["+r", "-r"]


async def test_an_error_while_start_is_cancelled_is_the_cause_of_the_cancellation(log):
    causes = []

    @asynccontextmanager
    async def failing():
        async with log.resource("r", release_fails=KeyError("release")):
            await forever()
            yield

    async def start():
        try:
            await Owner(failing).start()
        except asyncio.CancelledError as cancelled:
            causes.append(cancelled.__cause__)
            raise

    starting = asyncio.create_task(start())
    await turns()
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    assert [type(cause) for cause in causes] == [KeyError]


async def test_wherever_start_is_cancelled_nothing_is_left_open(log):
    owners = []

    async def scenario():
        log.clear()

        @asynccontextmanager
        async def several():
            async with Scope() as scope:
                await scope.enter(log.resource("a"))
                scope.start(log.child("pump"))
                await scope.enter(log.resource("b"))
                yield "value"
                scope.cancel()

        owner = Owner(several)
        owners[:] = [owner]
        assert await owner.start() == "value"
        # A caller that has the value must close it, even when it is cancelled.
        closing = asyncio.create_task(owner.close())
        while not closing.done():
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                await asyncio.wait({closing})
                raise

    def check():
        assert owners[0].closed
        log.check_balanced()

    assert await cancel_at_every_await(scenario, check=check) >= 2


async def test_a_cancelled_close_still_closes(log):
    may_end = asyncio.Event()

    @asynccontextmanager
    async def slow():
        async with log.resource("r"):
            yield
            await may_end.wait()

    owner = Owner(slow)
    await owner.start()
    closing = asyncio.create_task(owner.close())
    await turns()
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert not owner.closed
    may_end.set()
    await owner.wait()
    assert log == ["+r", "-r"]


async def test_a_release_that_takes_too_long_is_interrupted(log):
    @asynccontextmanager
    async def slow():
        async with log.resource("r"):
            yield
            await forever()

    owner = Owner(slow, name="slow thing")
    await owner.start()
    with pytest.raises(CloseTimeout) as caught:
        await owner.close(deadline=Deadline.after(0))
    assert caught.value.interrupted == ("slow thing",)
    assert caught.value.still_running == ()
    assert owner.closed
    assert log == ["+r", "-r"]


async def test_a_release_that_ignores_cancellation_is_reported_as_still_running():
    may_end = asyncio.Event()

    @asynccontextmanager
    async def stubborn():
        yield
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()

    owner = Owner(stubborn, name="stubborn thing")
    await owner.start()
    with pytest.raises(CloseTimeout) as caught:
        await owner.close(deadline=Deadline.after(0), grace=0)
    assert caught.value.still_running == ("stubborn thing",)
    assert not owner.closed
    may_end.set()
    with pytest.raises(CloseTimeout):
        await owner.close()
    assert owner.closed


async def test_the_earliest_deadline_counts_and_releases_can_read_it(log):
    seen = []

    @asynccontextmanager
    async def reading():
        yield
        await turns()
        seen.append(owner.deadline)

    owner = Owner(reading)
    await owner.start()
    assert owner.deadline is NEVER
    late, soon = Deadline.after(3600), Deadline.after(60)
    await asyncio.gather(owner.close(deadline=late), owner.close(deadline=soon), owner.close(deadline=late))
    assert seen == [soon]


async def test_a_deadline_applies_even_if_its_caller_was_cancelled(log):
    @asynccontextmanager
    async def slow():
        async with log.resource("r"):
            yield
            await forever()

    owner = Owner(slow)
    await owner.start()
    closing = asyncio.create_task(owner.close(deadline=Deadline.after(0.01)))
    await turns(2)
    closing.cancel()
    with pytest.raises(CloseTimeout):
        await owner.wait()
    assert log == ["+r", "-r"]


async def test_a_deadline_that_was_met_leaves_no_timer(log):
    owner = Owner(lambda: log.resource("r"))
    await owner.start()
    await owner.close(deadline=Deadline.after(3600))
    assert all(timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)


async def test_an_owner_cancelled_by_a_stopping_loop_releases_and_is_closed(log):
    owner = Owner(lambda: log.resource("r"), name="the owner")
    await owner.start()
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "the owner")
    task.cancel()
    await owner.wait()
    assert owner.closed
    assert log == ["+r", "-r"]
    await owner.close()


async def test_a_context_that_ends_by_itself_is_closed(log):
    @asynccontextmanager
    async def brief():
        async with Scope() as scope:
            await scope.enter(log.resource("r"))
            asyncio.get_running_loop().call_soon(scope.cancel)
            yield

    owner = Owner(brief)
    await owner.start()
    await owner.wait()
    assert owner.closed
    assert not owner.closing
    assert log == ["+r", "-r"]


async def test_an_error_that_no_caller_receives_is_reported_by_the_loop():
    reports = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    @asynccontextmanager
    async def failing():
        async with Scope() as scope:

            async def pump():
                raise KeyError("unseen")

            scope.start(pump())
            yield

    owner = Owner(failing)
    await owner.start()
    await turns()
    assert owner.closed
    del owner
    gc.collect()
    assert [type(report["exception"]) for report in reports] == [KeyError]
