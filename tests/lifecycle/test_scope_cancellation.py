# ruff: noqa: PT012 - the block that raises is what is tested
"""Cancellation of scopes and of the tasks that hold them."""

import asyncio
import sys
from contextlib import nullcontext, suppress

import pytest

from factories.lifecycle import forever, turns
from standfast.lifecycle import Scope
from standfast.testing.interruption import cancel_at_every_await


class TestCancellation:
    async def test_cancel_from_the_body_ends_the_children_and_the_body_continues(self, log):
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
        log.check_balanced()
        assert asyncio.current_task().cancelling() == 0

    async def test_cancel_may_be_repeated_and_has_no_effect_afterwards(self):
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
                    scope.push_callback(lambda: log.append("undisturbed"))
                    scope.push_callback(turns)
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

    async def test_releases_after_a_deferred_cancellation_are_not_disturbed(self, log):
        undisturbed = []

        async def release():
            await turns()
            undisturbed.append(True)

        async def body():
            async with Scope() as scope:
                scope.push_callback(release)
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
                scope.push_callback(slow)

        task = asyncio.create_task(body())
        await releasing.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert log == ["+first", "slow", "-first"]

    async def test_a_cancellation_that_a_release_suppresses_is_not_lost(self):
        releasing = asyncio.Event()

        async def swallows():
            releasing.set()
            with suppress(asyncio.CancelledError):
                await forever()

        async def body():
            async with Scope() as scope:
                scope.push_callback(swallows)

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
        log.check_balanced()
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
            log.check_balanced()
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

        assert await cancel_at_every_await(scenario, check=log.check_balanced) > 3
