"""The executor with a single thread."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import standfast
from factories.lifecycle import turns
from standfast.base.errors import Closed
from standfast.lifecycle import SingleThreadExecutor, UnansweredJob
from standfast.testing.interruption import cancel_at_every_await


@pytest.fixture
async def executor():
    async with SingleThreadExecutor("standfast-test") as executor:
        yield executor


class Gate:
    """Blocks the thread inside a job until it is opened."""

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


class TestRun:
    async def test_run_returns_the_result_of_the_function(self, executor):
        assert await executor.run(divmod, 7, 2) == (3, 1)

    async def test_run_raises_the_error_of_the_function_and_the_thread_continues(self, executor):
        with pytest.raises(ZeroDivisionError):
            await executor.run(divmod, 1, 0)
        assert await executor.run(len, "on") == 2

    @pytest.mark.parametrize("error", [StopIteration("x"), StopAsyncIteration(), GeneratorExit()])
    async def test_special_exceptions_are_raised_too(self, executor, error):
        def fail():
            raise error

        with pytest.raises((RuntimeError, type(error))) as caught:
            await executor.run(fail)
        assert error in (caught.value, caught.value.__cause__)

    async def test_no_exception_ends_the_thread(self, executor):
        def leave():
            raise SystemExit(3)

        async def call():
            try:
                await executor.run(leave)
            except SystemExit as error:
                return error.code

        assert await call() == 3
        assert await executor.run(int) == 0

    async def test_everything_runs_in_one_other_thread(self, executor):
        seen = await asyncio.gather(*(executor.run(threading.get_ident) for _ in range(50)))
        assert len(set(seen)) == 1
        assert seen[0] != threading.get_ident()
        assert await executor.run(lambda: threading.current_thread().name) == "standfast-test"

    async def test_calls_run_in_order(self, executor):
        done = []
        await asyncio.gather(*(executor.run(done.append, n) for n in range(200)))
        assert done == list(range(200))

    async def test_no_thread_starts_before_the_first_call(self):
        executor = SingleThreadExecutor("standfast-lazy")
        assert threads_named("standfast-lazy") == []
        await executor.run(int)
        assert len(threads_named("standfast-lazy")) == 1
        await executor.close()
        assert threads_named("standfast-lazy") == []

    async def test_a_result_is_delivered_while_the_next_job_runs(self, executor, gate):
        quick, slow = asyncio.create_task(executor.run(int)), asyncio.create_task(executor.run(gate.pass_through))
        assert await quick == 0
        assert not slow.done()
        gate.opened.set()
        assert await slow == "passed"

    async def test_results_are_released_after_the_next_call(self, executor):
        class Big:
            pass

        result = await executor.run(Big)
        gone = weakref.ref(result)
        del result
        await executor.run(int)
        gc.collect()
        assert gone() is None

    async def test_a_result_is_released_while_the_thread_is_idle(self, executor):
        class Big:
            pass

        result = await executor.run(Big)
        gone = weakref.ref(result)
        del result
        while gone() is not None:  # noqa: ASYNC110 - the thread may not be waiting yet
            await asyncio.sleep(0)


class TestCancellation:
    async def test_a_cancelled_caller_returns_at_once_and_the_job_still_runs(self, executor, gate):
        done = []
        holding = asyncio.create_task(executor.run(gate.pass_through))
        calling = asyncio.create_task(executor.run(done.append, "done"))
        await gate.until_entered()
        calling.cancel()
        holding.cancel()
        await asyncio.wait({calling, holding})
        assert calling.cancelled()
        assert holding.cancelled()
        assert done == []
        gate.opened.set()
        assert await executor.run(int) == 0
        assert done == ["done"]

    async def test_wherever_callers_are_cancelled_every_job_runs_once_and_in_order(self, executor):
        done = []

        async def scenario():
            await executor.run(done.clear)
            for n in range(4):
                await executor.run(done.append, n)

        assert await cancel_at_every_await(scenario) == 5
        assert await executor.run(lambda: list(done)) == [0, 1, 2, 3]


class TestClose:
    async def test_close_finishes_the_queued_jobs_and_joins_the_thread(self, gate):
        executor = SingleThreadExecutor("standfast-closing")
        done = []
        tasks = [asyncio.create_task(executor.run(gate.pass_through))]
        tasks += [asyncio.create_task(executor.run(done.append, n)) for n in range(20)]
        await gate.until_entered()
        closing = asyncio.create_task(executor.close())
        await turns()
        assert not closing.done()
        assert executor.closed
        gate.opened.set()
        await closing
        assert done == list(range(20))
        assert threads_named("standfast-closing") == []
        await asyncio.gather(*tasks)

    async def test_run_raises_after_close(self):
        executor = SingleThreadExecutor("standfast-closed")
        await executor.run(int)
        await executor.close()
        with pytest.raises(Closed):
            await executor.run(int)

    async def test_run_raises_while_closing(self, gate):
        executor = SingleThreadExecutor("standfast-closing")
        holding = asyncio.create_task(executor.run(gate.pass_through))
        await gate.until_entered()
        closing = asyncio.create_task(executor.close())
        await turns()
        with pytest.raises(Closed):
            await executor.run(int)
        gate.opened.set()
        await asyncio.gather(holding, closing)

    async def test_close_may_be_repeated_and_called_by_many_tasks(self, gate):
        executor = SingleThreadExecutor("standfast-many")
        holding = asyncio.create_task(executor.run(gate.pass_through))
        await gate.until_entered()
        closers = [asyncio.create_task(executor.close()) for _ in range(5)]
        await turns()
        assert not any(closer.done() for closer in closers)
        gate.opened.set()
        await asyncio.gather(holding, *closers)
        await executor.close()

    async def test_closing_an_unused_executor_starts_no_thread(self):
        executor = SingleThreadExecutor("standfast-unused")
        await executor.close()
        await executor.close()
        with pytest.raises(Closed):
            await executor.run(int)
        assert threads_named("standfast-unused") == []

    async def test_a_cancelled_close_still_closes(self, gate):
        executor = SingleThreadExecutor("standfast-cancelled")
        holding = asyncio.create_task(executor.run(gate.pass_through))
        await gate.until_entered()
        closing = asyncio.create_task(executor.close())
        await turns()
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        gate.opened.set()
        await executor.close()
        assert await holding == "passed"
        assert threads_named("standfast-cancelled") == []

    async def test_the_thread_ends_with_an_executor_that_was_garbage_collected(self):
        executor = SingleThreadExecutor("standfast-forgotten")
        done = []
        tasks = [asyncio.create_task(executor.run(done.append, n)) for n in range(5)]
        await asyncio.gather(*tasks)
        (thread,) = threads_named("standfast-forgotten")
        del executor, tasks
        gc.collect()
        thread.join(120)
        assert not thread.is_alive()
        assert done == list(range(5))

    def test_an_executor_that_was_not_closed_does_not_keep_the_interpreter_from_exiting(self):
        script = """
import asyncio, threading
from standfast.lifecycle import SingleThreadExecutor
executor = SingleThreadExecutor("forgotten")
async def main():
    stuck = asyncio.create_task(executor.run(threading.Event().wait))
    await asyncio.sleep(0)
    stuck.cancel()
asyncio.run(main())
print("exiting")
"""
        source = str(Path(standfast.__file__).parent.parent)
        ran = subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONPATH": source}, capture_output=True, timeout=150
        )
        assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"exiting\n", b"")


class TestLoops:
    def test_jobs_of_many_loops_each_get_their_own_results(self):
        executor = SingleThreadExecutor("standfast-loops")
        idents, mistakes = set(), []

        async def use(number):
            for turn in range(50):
                expected = [(number, turn, n) for n in range(5)]
                results = await asyncio.gather(*(executor.run(tuple, each) for each in expected))
                if results != expected:
                    mistakes.append(results)
            idents.add(await executor.run(threading.get_ident))

        threads = [threading.Thread(target=lambda n=n: asyncio.run(use(n))) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert mistakes == []
        assert len(idents) == 1
        asyncio.run(executor.close())

    def test_consecutive_loops_share_the_thread(self):
        executor = SingleThreadExecutor("standfast-loops")
        idents = {asyncio.run(executor.run(threading.get_ident)) for _ in range(5)}
        assert len(idents) == 1
        asyncio.run(executor.close())

    def test_closed_loops_are_released(self):
        executor = SingleThreadExecutor("standfast-loops")
        loop = asyncio.new_event_loop()
        loop.run_until_complete(executor.run(int))
        loop.close()
        gone = weakref.ref(loop)
        del loop
        asyncio.run(executor.run(int))
        gc.collect()
        assert gone() is None
        asyncio.run(executor.close())

    def test_a_loop_closed_before_the_result_does_not_end_the_thread(self, gate):
        executor = SingleThreadExecutor("standfast-loops")

        async def give_up():
            asyncio.create_task(executor.run(gate.pass_through))  # noqa: RUF006 - cancelled with the loop
            asyncio.create_task(executor.run(int))  # noqa: RUF006
            await gate.until_entered()

        async def stand_in_line_behind():
            calling = asyncio.create_task(executor.run(len, "on"))
            await turns()
            gate.opened.set()
            return await calling

        asyncio.run(give_up())
        assert asyncio.run(stand_in_line_behind()) == 2
        asyncio.run(executor.close())

    async def test_a_loop_closed_before_the_result_does_not_affect_other_loops(self, executor, gate):
        async def give_up():
            asyncio.create_task(executor.run(int))  # noqa: RUF006
            await turns()

        holding = asyncio.create_task(executor.run(gate.pass_through))
        await gate.until_entered()
        elsewhere = threading.Thread(target=asyncio.run, args=(give_up(),))
        elsewhere.start()
        elsewhere.join()
        calling = asyncio.create_task(executor.run(len, "on"))  # In one batch with the orphaned job.
        await turns()
        gate.opened.set()
        assert await asyncio.gather(holding, calling) == ["passed", 2]

    def test_a_loop_closed_before_the_end_of_close_does_not_break_it(self, gate, caplog):
        executor = SingleThreadExecutor("standfast-loops")

        async def give_up():
            asyncio.create_task(executor.run(gate.pass_through))  # noqa: RUF006
            await gate.until_entered()
            asyncio.create_task(executor.close())  # noqa: RUF006
            await turns()

        asyncio.run(give_up())
        gate.opened.set()
        asyncio.run(executor.close())
        assert threads_named("standfast-loops") == []
        assert caplog.records == []


class TestHandler:
    async def test_a_handler_gets_all_waiting_jobs_in_order(self, gate):
        batches = []

        def share(jobs):
            values = [job.call() for job in jobs]
            batches.append([job.args for job in jobs])
            for job, value in zip(jobs, values, strict=True):
                job.set_result(value)

        async with SingleThreadExecutor("standfast-handled", handle=share) as executor:
            first = asyncio.create_task(executor.run(gate.pass_through))
            await gate.until_entered()
            rest = [asyncio.create_task(executor.run(abs, -n)) for n in range(10)]
            await turns()
            gate.opened.set()
            assert await first == "passed"
            assert await asyncio.gather(*rest) == list(range(10))
        assert batches == [[()], [(-n,) for n in range(10)]]

    async def test_no_result_is_delivered_before_the_handler_sets_it(self, gate):
        committed = []

        def commit_together(jobs):
            values = [job.call() for job in jobs]
            gate.pass_through()
            committed.append(len(jobs))
            for job, value in zip(jobs, values, strict=True):
                job.set_result(value)

        async with SingleThreadExecutor("standfast-commit", handle=commit_together) as executor:
            calling = asyncio.create_task(executor.run(int))
            await gate.until_entered()
            await turns()
            assert not calling.done()
            gate.opened.set()
            assert await calling == 0
        assert sum(committed) == 1

    async def test_an_error_of_the_handler_is_the_outcome_of_the_remaining_jobs(self, gate):
        def handle(jobs):
            jobs[0].set_result(jobs[0].call())
            if len(jobs) > 1:
                raise ZeroDivisionError

        async with SingleThreadExecutor("standfast-failing", handle=handle) as executor:
            holding = asyncio.create_task(executor.run(gate.pass_through))
            await gate.until_entered()
            tasks = [asyncio.create_task(executor.run(int)) for _ in range(3)]
            await turns()
            gate.opened.set()
            await asyncio.wait({holding, *tasks})
            assert tasks[0].result() == 0
            assert [type(task.exception()) for task in tasks[1:]] == 2 * [ZeroDivisionError]
            assert await executor.run(int) == 0, "the thread continues"

    async def test_a_job_without_an_outcome_raises(self):
        async with SingleThreadExecutor("standfast-forgetting", handle=lambda jobs: jobs.clear()) as executor:
            with pytest.raises(UnansweredJob) as caught:
                await executor.run(int)
            assert caught.value.code == "unanswered"

    async def test_only_the_first_outcome_counts(self):
        def twice(jobs):
            for job in jobs:
                job.set_result("first")
                assert job.answered
                job.set_result("second")
                job.set_exception(ZeroDivisionError())

        async with SingleThreadExecutor("standfast-twice", handle=twice) as executor:
            assert await executor.run(int) == "first"

    async def test_a_handler_is_not_called_without_jobs(self):
        batches = []

        def handle(jobs):
            batches.append(len(jobs))
            for job in jobs:
                job.set_result(job.call())

        async with SingleThreadExecutor("standfast-idle", handle=handle) as executor:
            await executor.run(int)
        assert batches == [1]
