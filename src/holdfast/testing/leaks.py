"""A pytest plugin: a test that leaves something behind fails.

Switch it on with ``pytest_plugins = ["holdfast.testing.leaks"]`` in the top ``conftest.py``. After each test
and the teardown of its fixtures there must be no pending task, no new child process (a zombie counts), no
new thread and no new file descriptor. What fixtures of a wider scope open belongs to them and is not counted
against the test that happened to need them first.

A test that leaves something on purpose says so: ``@pytest.mark.leaks("process", "fd")``.
"""

import asyncio
import gc
import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

FDS = Path("/proc/self/fd")
TASKS = Path("/proc/self/task")

# What there is: (kind, identity), with a description for people.
Seen = dict[tuple[str, object], str]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "leaks(*kinds): this test leaves a 'task', 'process', 'thread' or 'fd' behind on purpose"
    )
    config.pluginmanager.register(LeakCheck(), "holdfast-leaks")


class LeakCheck:
    """Compares what there is before and after each test."""

    def __init__(self) -> None:
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._before: Seen = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self._before = self._look()
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        own = fixturedef.scope == "function"
        before = {} if own else self._look()
        value = yield
        if isinstance(value, asyncio.Runner):
            loop = value.get_loop()
            self._loops.append(loop)
            if own:
                # Closing the runner cancels what is pending, so this looks just before. Every
                # fixture that uses the loop has been torn down by then.
                fixturedef.addfinalizer(lambda: self._fail_if(request.node, _pending_for_good(loop)))
            fixturedef.addfinalizer(lambda: self._loops.remove(loop))
        if not own:
            now = self._look()
            self._before.update({thing: now[thing] for thing in now.keys() - before.keys()})
        return value

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        if self._look().keys() - self._before.keys():
            gc.collect()
            for thread in threading.enumerate():
                if ("thread", thread) not in self._before:
                    thread.join(timeout=1.0)  # It may be on its last line.
        now = self._look()
        self._fail_if(item, {thing: now[thing] for thing in now.keys() - self._before.keys()})

    def _look(self) -> Seen:
        return {
            **_pending(self._loops),
            **{("process", pid): f"child process {pid} ({_command(pid)})" for pid in _children()},
            **{("thread", t): f"thread {t.name!r}" for t in threading.enumerate()},
            **{("fd", (n, what)): f"file descriptor {n} ({what})" for n, what in _descriptors()},
        }

    def _fail_if(self, item: pytest.Item, found: Seen) -> None:
        forgiven = {kind for mark in item.iter_markers("leaks") for kind in mark.args}
        if left := sorted(text for (kind, _), text in found.items() if kind not in forgiven):
            pytest.fail("the test left behind: " + ", ".join(left), pytrace=False)


def _pending(loops: list[asyncio.AbstractEventLoop]) -> Seen:
    tasks = {task for loop in loops for task in asyncio.all_tasks(loop)}
    return {("task", task): f"task {task.get_name()!r} in {task.get_coro()}" for task in tasks}


def _pending_for_good(loop: asyncio.AbstractEventLoop) -> Seen:
    """What is pending, after the generators that the collector is closing have had their turns.

    Libraries leave such generators behind when they break out of a stream; the loop closes them by itself.
    """
    for _ in range(5):
        if not any(type(task.get_coro()).__name__ == "async_generator_athrow" for task in asyncio.all_tasks(loop)):
            break
        loop.run_until_complete(asyncio.sleep(0))
    return _pending([loop])


def _children() -> Iterator[int]:
    for thread in TASKS.iterdir() if TASKS.exists() else ():
        try:
            yield from map(int, (thread / "children").read_text().split())
        except OSError:
            continue  # The thread has ended, or this kernel does not list children.


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or "a zombie"
    except OSError:
        return "gone"


def _descriptors() -> Iterator[tuple[int, str]]:
    for number in os.listdir(FDS) if FDS.exists() else ():
        try:
            yield int(number), os.readlink(FDS / number)
        except OSError:
            continue  # The listing itself had one open.
