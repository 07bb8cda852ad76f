"""A pytest plugin that fails tests which leak tasks, processes, threads or file descriptors.

Enable it with ``pytest_plugins = ["standfast.testing.leaks"]`` in the top ``conftest.py``. After each test and the
teardown of its fixtures there must be no pending task, no new child process (zombies included), no new thread and no
new file descriptor. Resources of fixtures with a wider scope do not count as leaks of the test that used them first.
Neither do fork servers of workers that wait for the next session, since that may come in another test: they end by
themselves, at the latest with the program. A test that needs them gone calls ``close_idle_fork_servers()``.

Mark a test that leaks on purpose with the kinds of resources: ``@pytest.mark.leaks("process", "fd")``.
"""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from standfast.workers import IdleForkServer

FD_DIR = "/proc/self/fd"
TASK_DIR = "/proc/self/task"

# (kind, identity) -> description
Resources = dict[tuple[str, object], str]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "leaks(*kinds): the test leaks a 'task', 'process', 'thread' or 'fd' on purpose")
    config.pluginmanager.register(LeakCheck(), "standfast-leaks")


class LeakCheck:
    """Compares the resources before and after each test."""

    def __init__(self) -> None:
        self._loops: list[asyncio.AbstractEventLoop] = []
        self._before: Resources = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self._before = self._take_snapshot()
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, object, object]:
        own = fixturedef.scope == "function"
        before = {} if own else self._take_snapshot()
        value = yield
        if isinstance(value, asyncio.Runner):
            loop = value.get_loop()
            self._loops.append(loop)
            if own:
                # Closing the runner cancels pending tasks, so they are checked just before. All fixtures that use the
                # loop have been torn down by then.
                fixturedef.addfinalizer(lambda: self._fail_on_leaks(request.node, _find_stuck_tasks(loop)))
            fixturedef.addfinalizer(lambda: self._loops.remove(loop))
        if not own:
            now = self._take_snapshot()
            self._before.update({thing: now[thing] for thing in now.keys() - before.keys()})
        return value

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        yield
        now = self._join_threads(self._take_snapshot(), timeout=0.05)
        if now.keys() - self._before.keys():
            gc.collect()  # A session that is no longer referenced ends its thread.
            now = self._join_threads(self._take_snapshot(), timeout=1.0)
        self._fail_on_leaks(item, {thing: now[thing] for thing in now.keys() - self._before.keys()})

    def _join_threads(self, now: Resources, *, timeout: float) -> Resources:
        """Wait for new threads, which may be about to end; return the resources after that."""
        threads = [thing for _, thing in now.keys() - self._before.keys() if isinstance(thing, threading.Thread)]
        for thread in threads:
            thread.join(timeout)
        return self._take_snapshot() if threads else now

    def _take_snapshot(self) -> Resources:
        idle = _list_idle_fork_servers()
        pids, descriptors = {server.pid for server in idle}, {server.descriptor for server in idle}
        return {
            **_find_pending_tasks(self._loops),
            **{
                ("process", pid): f"child process {pid} ({_get_command(pid)})"
                for pid in _iter_children()
                if pid not in pids
            },
            **{("thread", t): f"thread {t.name!r}" for t in threading.enumerate()},
            **{
                ("fd", (n, what)): f"file descriptor {n} ({what})"
                for n, what in _iter_descriptors()
                if n not in descriptors
            },
        }

    def _fail_on_leaks(self, item: pytest.Item, leaked: Resources) -> None:
        allowed = {kind for mark in item.iter_markers("leaks") for kind in mark.args}
        if leaks := sorted(text for (kind, _), text in leaked.items() if kind not in allowed):
            pytest.fail("the test leaked: " + ", ".join(leaks), pytrace=False)


def _list_idle_fork_servers() -> "list[IdleForkServer]":
    if "standfast.workers._host.idle_servers" not in sys.modules:
        return []
    from standfast.workers import list_idle_fork_servers

    return list_idle_fork_servers()


def _find_pending_tasks(loops: list[asyncio.AbstractEventLoop]) -> Resources:
    tasks = {task for loop in loops for task in asyncio.all_tasks(loop)}
    return {("task", task): f"task {task.get_name()!r} in {task.get_coro()}" for task in tasks}


def _find_stuck_tasks(loop: asyncio.AbstractEventLoop) -> Resources:
    """Return the pending tasks, after async generators that the loop is closing have had time to end.

    Libraries leave such generators behind when they break out of a stream; the loop closes them by itself.
    """
    for _ in range(5):
        if not any(type(task.get_coro()).__name__ == "async_generator_athrow" for task in asyncio.all_tasks(loop)):
            break
        loop.run_until_complete(asyncio.sleep(0))
    return _find_pending_tasks([loop])


def _iter_children() -> Iterator[int]:
    for thread in os.listdir(TASK_DIR) if os.path.exists(TASK_DIR) else ():
        try:
            with open(f"{TASK_DIR}/{thread}/children", "rb") as children:
                yield from map(int, children.read().split())
        except OSError:
            continue  # The thread has ended, or this kernel does not list children.


def _get_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() or "a zombie"
    except OSError:
        return "gone"


def _iter_descriptors() -> Iterator[tuple[int, str]]:
    for number in os.listdir(FD_DIR) if os.path.exists(FD_DIR) else ():
        try:
            yield int(number), os.readlink(f"{FD_DIR}/{number}")
        except OSError:
            continue  # The descriptor of the listing itself.
