"""What the tests of live things have in common."""

import asyncio
from contextlib import asynccontextmanager

from hypothesis import strategies as st


async def turns(count=10):
    """Let everything run that can run now."""
    for _ in range(count):
        await asyncio.sleep(0)


async def forever():
    await asyncio.Event().wait()


class Log(list):
    """What was acquired and released, in order."""

    @asynccontextmanager
    async def resource(self, name, *, awaits=1, fails=None, release_fails=None):
        await turns(awaits)
        if fails is not None:
            raise fails
        self.append(f"+{name}")
        try:
            yield name
        finally:
            try:
                await turns(awaits)
            finally:
                self.append(f"-{name}")
            if release_fails is not None:
                raise release_fails

    async def child(self, name, *, until=None):
        self.append(f"+{name}")
        try:
            await (until.wait() if until else forever())
        finally:
            try:
                await asyncio.sleep(0)
            finally:
                self.append(f"-{name}")

    def balanced(self):
        assert sorted(e[1:] for e in self if e[0] == "+") == sorted(e[1:] for e in self if e[0] == "-"), self


def start(work):
    return asyncio.get_running_loop().create_task(work)


def schedule(*steps):
    """Long ones, or Hypothesis would mostly try a handful of steps and never fill anything."""
    always = [
        st.tuples(st.just("send"), st.none()),
        st.tuples(st.just("send_nowait"), st.none()),
        st.tuples(st.just("receive"), st.integers(0, 5)),
        st.tuples(st.just("receive"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 5)),
        st.tuples(st.just("turn"), st.integers(1, 3)),
        st.tuples(st.just("settle"), st.none()),
    ]
    return st.lists(st.one_of(*always, *steps), min_size=25, max_size=60)


def cancel_one(tasks, number):
    """Cancel one of those that are not done, counted from the one that has waited longest."""
    if waiting := [task for task in tasks if not task.done()]:
        waiting[number % len(waiting)].cancel()


async def quiet(tasks):
    """Wait until nothing more happens by itself. A hand-over takes less than four turns."""
    before = None
    while before != (before := sum(task.done() for task in tasks)):
        await turns(4)
