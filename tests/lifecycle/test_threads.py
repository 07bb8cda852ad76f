"""What the one-thread executor promises."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest
from witness import turns

import standfast
from standfast.base.errors import Closed
from standfast.lifecycle import SingleThreadExecutor, UnansweredJob
from standfast.testing.cancellation import cancel_at_every_await


@pytest.fixture
async def one():
    async with SingleThreadExecutor("standfast-test") as one:
        yield one


class Gate:
    """Holds the thread inside a job until it is opened."""

    def __init__(self):
        self.entered, self.opened = threading.Event(), threading.Event()

    def pass_through(self):
        self.entered.set()
        assert self.opened.wait(10)
        return "passed"

    async def until_entered(self):
        while not self.entered.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.opened.set()


def threads_named(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


class TestRunning:
    async def test_it_gives_what_the_function_returns(self, one):
        assert await one.run(divmod, 7, 2) == (3, 1)

    async def test_it_raises_what_the_function_raises_and_goes_on(self, one):
        with pytest.raises(ZeroDivisionError):
            await one.run(divmod, 1, 0)
        assert await one.run(len, "on") == 2

    @pytest.mark.parametrize("error", [StopIteration("x"), StopAsyncIteration(), GeneratorExit()])
    async def test_even_awkward_exceptions_come_back(self, one, error):
        def fail():
            raise error

        with pytest.raises((RuntimeError, type(error))) as caught:
            await one.run(fail)
        assert error in (caught.value, caught.value.__cause__)

    async def test_an_exception_that_would_kill_a_thread_does_not(self, one):
        def leave():
            raise SystemExit(3)

        async def call():
            try:
                await one.run(leave)
            except SystemExit as error:
                return error.code

        assert await call() == 3
        assert await one.run(int) == 0

    async def test_everything_runs_in_one_thread_of_its_own(self, one):
        seen = await asyncio.gather(*(one.run(threading.get_ident) for _ in range(50)))
        assert len(set(seen)) == 1
        assert seen[0] != threading.get_ident()
        assert await one.run(lambda: threading.current_thread().name) == "standfast-test"

    async def test_calls_are_done_in_their_order(self, one):
        done = []
        await asyncio.gather(*(one.run(done.append, n) for n in range(200)))
        assert done == list(range(200))

    async def test_no_thread_starts_before_the_first_call(self):
        one = SingleThreadExecutor("standfast-lazy")
        assert threads_named("standfast-lazy") == []
        await one.run(int)
        assert len(threads_named("standfast-lazy")) == 1
        await one.close()
        assert threads_named("standfast-lazy") == []

    async def test_a_finished_job_is_answered_although_the_next_one_takes_long(self, one, gate):
        quick, slow = asyncio.create_task(one.run(int)), asyncio.create_task(one.run(gate.pass_through))
        assert await quick == 0
        assert not slow.done()
        gate.opened.set()
        assert await slow == "passed"

    async def test_results_do_not_outlive_their_callers(self, one):
        class Big:
            pass

        result = await one.run(Big)
        gone = weakref.ref(result)
        del result
        await one.run(int)
        gc.collect()
        assert gone() is None

    async def test_a_result_is_released_while_the_thread_is_idle(self, one):
        class Big:
            pass

        result = await one.run(Big)
        gone = weakref.ref(result)
        del result
        while gone() is not None:  # noqa: ASYNC110 - the thread may still be on its way back to its queue
            await asyncio.sleep(0)


class TestCancelling:
    async def test_a_cancelled_caller_leaves_at_once_and_the_job_is_still_done(self, one, gate):
        done = []
        holding = asyncio.create_task(one.run(gate.pass_through))
        calling = asyncio.create_task(one.run(done.append, "done"))
        await gate.until_entered()
        calling.cancel()
        holding.cancel()
        await asyncio.wait({calling, holding})
        assert calling.cancelled()
        assert holding.cancelled()
        assert done == []
        gate.opened.set()
        assert await one.run(int) == 0
        assert done == ["done"]

    async def test_wherever_callers_are_cancelled_every_job_is_done_once_and_in_order(self, one):
        done = []

        async def scenario():
            await one.run(done.clear)
            for n in range(4):
                await one.run(done.append, n)

        assert await cancel_at_every_await(scenario) == 5
        assert await one.run(lambda: list(done)) == [0, 1, 2, 3]


class TestClosing:
    async def test_closing_finishes_what_is_queued_and_joins_the_thread(self, gate):
        one = SingleThreadExecutor("standfast-closing")
        done = []
        tasks = [asyncio.create_task(one.run(gate.pass_through))]
        tasks += [asyncio.create_task(one.run(done.append, n)) for n in range(20)]
        await gate.until_entered()
        closing = asyncio.create_task(one.close())
        await turns()
        assert not closing.done()
        assert one.closed
        gate.opened.set()
        await closing
        assert done == list(range(20))
        assert threads_named("standfast-closing") == []
        await asyncio.gather(*tasks)

    async def test_use_after_closing_is_refused(self):
        one = SingleThreadExecutor("standfast-closed")
        await one.run(int)
        await one.close()
        with pytest.raises(Closed):
            await one.run(int)

    async def test_use_while_closing_is_refused(self, gate):
        one = SingleThreadExecutor("standfast-closing")
        holding = asyncio.create_task(one.run(gate.pass_through))
        await gate.until_entered()
        closing = asyncio.create_task(one.close())
        await turns()
        with pytest.raises(Closed):
            await one.run(int)
        gate.opened.set()
        await asyncio.gather(holding, closing)

    async def test_closing_may_be_repeated_and_done_by_many(self, gate):
        one = SingleThreadExecutor("standfast-many")
        holding = asyncio.create_task(one.run(gate.pass_through))
        await gate.until_entered()
        closers = [asyncio.create_task(one.close()) for _ in range(5)]
        await turns()
        assert not any(closer.done() for closer in closers)
        gate.opened.set()
        await asyncio.gather(holding, *closers)
        await one.close()

    async def test_closing_one_that_was_never_used_starts_no_thread(self):
        one = SingleThreadExecutor("standfast-unused")
        await one.close()
        await one.close()
        with pytest.raises(Closed):
            await one.run(int)
        assert threads_named("standfast-unused") == []

    async def test_a_cancelled_closer_does_not_stop_the_closing(self, gate):
        one = SingleThreadExecutor("standfast-cancelled")
        holding = asyncio.create_task(one.run(gate.pass_through))
        await gate.until_entered()
        closing = asyncio.create_task(one.close())
        await turns()
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        gate.opened.set()
        await one.close()
        assert await holding == "passed"
        assert threads_named("standfast-cancelled") == []

    async def test_a_forgotten_one_lets_its_thread_end(self):
        one = SingleThreadExecutor("standfast-forgotten")
        done = []
        tasks = [asyncio.create_task(one.run(done.append, n)) for n in range(5)]
        await asyncio.gather(*tasks)
        (thread,) = threads_named("standfast-forgotten")
        del one, tasks
        gc.collect()
        thread.join(10)
        assert not thread.is_alive()
        assert done == list(range(5))

    def test_a_forgotten_one_does_not_keep_the_interpreter_from_exiting(self):
        script = """
import asyncio, threading
from standfast.lifecycle import SingleThreadExecutor
one = SingleThreadExecutor("forgotten")
async def main():
    stuck = asyncio.create_task(one.run(threading.Event().wait))
    await asyncio.sleep(0)
    stuck.cancel()
asyncio.run(main())
print("exiting")
"""
        source = str(Path(standfast.__file__).parent.parent)
        ran = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": source}, capture_output=True, timeout=30
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"exiting\n", b"")


class TestLoops:
    def test_jobs_from_many_loops_each_get_their_own_answers(self):
        one = SingleThreadExecutor("standfast-loops")
        idents, mistakes = set(), []

        async def use(number):
            for turn in range(50):
                expected = [(number, turn, n) for n in range(5)]
                results = await asyncio.gather(*(one.run(tuple, each) for each in expected))
                if results != expected:
                    mistakes.append(results)
            idents.add(await one.run(threading.get_ident))

        threads = [threading.Thread(target=lambda n=n: asyncio.run(use(n))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mistakes == []
        assert len(idents) == 1
        asyncio.run(one.close())

    def test_loops_one_after_the_other_share_the_thread(self):
        one = SingleThreadExecutor("standfast-loops")
        idents = {asyncio.run(one.run(threading.get_ident)) for _ in range(5)}
        assert len(idents) == 1
        asyncio.run(one.close())

    def test_closed_loops_are_forgotten(self):
        one = SingleThreadExecutor("standfast-loops")
        loop = asyncio.new_event_loop()
        loop.run_until_complete(one.run(int))
        loop.close()
        gone = weakref.ref(loop)
        del loop
        asyncio.run(one.run(int))
        gc.collect()
        assert gone() is None
        asyncio.run(one.close())

    def test_a_loop_closed_before_the_answer_does_not_break_the_thread(self, gate):
        one = SingleThreadExecutor("standfast-loops")

        async def give_up():
            asyncio.create_task(one.run(gate.pass_through))  # noqa: RUF006 - cancelled with the loop
            asyncio.create_task(one.run(int))  # noqa: RUF006
            await gate.until_entered()

        async def stand_in_line_behind():
            calling = asyncio.create_task(one.run(len, "on"))
            await turns()
            gate.opened.set()
            return await calling

        asyncio.run(give_up())
        assert asyncio.run(stand_in_line_behind()) == 2
        asyncio.run(one.close())

    async def test_a_loop_closed_before_the_answer_does_not_spoil_the_answers_of_others(self, one, gate):
        async def give_up():
            asyncio.create_task(one.run(int))  # noqa: RUF006
            await turns()

        holding = asyncio.create_task(one.run(gate.pass_through))
        await gate.until_entered()
        elsewhere = threading.Thread(target=asyncio.run, args=(give_up(),))
        elsewhere.start()
        elsewhere.join()
        calling = asyncio.create_task(one.run(len, "on"))  # In one batch with the orphan.
        await turns()
        gate.opened.set()
        assert await asyncio.gather(holding, calling) == ["passed", 2]

    def test_a_loop_closed_before_the_end_of_closing_does_not_break_it(self, gate, caplog):
        one = SingleThreadExecutor("standfast-loops")

        async def give_up():
            asyncio.create_task(one.run(gate.pass_through))  # noqa: RUF006
            await gate.until_entered()
            asyncio.create_task(one.close())  # noqa: RUF006
            await turns()

        asyncio.run(give_up())
        gate.opened.set()
        asyncio.run(one.close())
        assert threads_named("standfast-loops") == []
        assert caplog.records == []


class TestHandling:
    async def test_a_handler_is_given_everything_that_waits_at_once_and_in_order(self, gate):
        batches = []

        def share(jobs):
            values = [job.call() for job in jobs]
            batches.append([job.args for job in jobs])
            for job, value in zip(jobs, values, strict=True):
                job.set_result(value)

        async with SingleThreadExecutor("standfast-handled", handle=share) as one:
            first = asyncio.create_task(one.run(gate.pass_through))
            await gate.until_entered()
            rest = [asyncio.create_task(one.run(abs, -n)) for n in range(10)]
            await turns()
            gate.opened.set()
            assert await first == "passed"
            assert await asyncio.gather(*rest) == list(range(10))
        assert batches == [[()], [(-n,) for n in range(10)]]

    async def test_nobody_is_answered_before_the_handler_says_so(self, gate):
        committed = []

        def commit_together(jobs):
            values = [job.call() for job in jobs]
            gate.pass_through()
            committed.append(len(jobs))
            for job, value in zip(jobs, values, strict=True):
                job.set_result(value)

        async with SingleThreadExecutor("standfast-commit", handle=commit_together) as one:
            calling = asyncio.create_task(one.run(int))
            await gate.until_entered()
            await turns()
            assert not calling.done()
            gate.opened.set()
            assert await calling == 0
        assert sum(committed) == 1

    async def test_a_handler_that_fails_fails_those_it_has_not_answered(self, gate):
        def handle(jobs):
            jobs[0].set_result(jobs[0].call())
            if len(jobs) > 1:
                raise ZeroDivisionError

        async with SingleThreadExecutor("standfast-failing", handle=handle) as one:
            holding = asyncio.create_task(one.run(gate.pass_through))
            await gate.until_entered()
            tasks = [asyncio.create_task(one.run(int)) for _ in range(3)]
            await turns()
            gate.opened.set()
            await asyncio.wait({holding, *tasks})
            assert tasks[0].result() == 0
            assert [type(task.exception()) for task in tasks[1:]] == 2 * [ZeroDivisionError]
            assert await one.run(int) == 0, "the thread goes on"

    async def test_a_handler_that_forgets_a_job_is_told_on(self):
        async with SingleThreadExecutor("standfast-forgetting", handle=lambda jobs: jobs.clear()) as one:
            with pytest.raises(UnansweredJob) as caught:
                await one.run(int)
            assert caught.value.code == "unanswered"

    async def test_the_first_answer_counts(self):
        def twice(jobs):
            for job in jobs:
                job.set_result("first")
                assert job.answered
                job.set_result("second")
                job.set_exception(ZeroDivisionError())

        async with SingleThreadExecutor("standfast-twice", handle=twice) as one:
            assert await one.run(int) == "first"

    async def test_a_handler_is_not_bothered_with_nothing(self):
        batches = []

        def handle(jobs):
            batches.append(len(jobs))
            for job in jobs:
                job.set_result(job.call())

        async with SingleThreadExecutor("standfast-idle", handle=handle) as one:
            await one.run(int)
        assert batches == [1]
