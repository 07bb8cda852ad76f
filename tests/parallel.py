"""A pytest plugin that runs the tests in several processes, forked after the tests were collected.

    pytest --processes 6

To import all test modules and collect the tests takes 7 seconds of processor time, and twice that in a new clone; the
processes of pytest-xdist each do it again. Here every process begins with all tests. It runs those of one file after
those of another, in the order of collection, and fixtures live as long as if the tests ran in one process.

A forked process has no other threads than that of its tests. So a test module must not start any when it is imported,
and neither must a library on its behalf: that belongs into a fixture.
"""

import multiprocessing
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import _pytest.tmpdir
import pytest

NOT_IN_CHILDREN = ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin")
"""Plugins that print or store the results, which the parent does."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--processes", type=int, default=1, help="run the tests in this many processes")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    count = session.config.getoption("processes")
    if count < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    return Parent(session).run(count)


@dataclass
class Child:
    """A process that runs tests, as its parent knows it."""

    pid: int
    given: list[tuple[int, int]] = field(default_factory=list)
    """The tests that it runs now, from the first to before the second place, and those that it runs next."""
    running: int | None = None
    """The place of the test that it runs."""


@dataclass
class Parent:
    """Hands out the tests of one file at a time, as a slice of all tests, and takes the reports."""

    session: pytest.Session
    children: dict[Connection, Child] = field(default_factory=dict)

    def __post_init__(self) -> None:
        starts = [0]
        for _, group in groupby(self.session.items, lambda item: item.path):
            starts.append(starts[-1] + len(list(group)))
        self.waiting = deque(pairwise(starts))
        self.missing = set(range(starts[-1]))
        self.folder = Path(self.session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]

    def run(self, count: int) -> bool:
        try:
            return self.run_all(count)
        finally:
            for connection, child in self.children.items():
                connection.close()  # it ends after its test
                os.waitpid(child.pid, 0)

    def run_all(self, count: int) -> bool:
        for _ in range(min(count, len(self.waiting))):
            if self.start():
                return True
        while self.children:
            for connection in wait(list(self.children)):
                message = receive(connection)
                if message is not None:
                    self.take(connection, *message)
                elif self.end(connection):
                    return True
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop or self.missing:
            raise self.session.Interrupted(self.session.shouldstop or f"{len(self.missing)} tests have not run")
        return True

    def start(self) -> bool:
        """Fork a process; return True in the new one when it has run its tests."""
        ours, theirs = multiprocessing.Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # libraries have threads, which no test needs
            pid = os.fork()
        if pid == 0:
            for connection in (ours, *self.children):
                connection.close()
            self.children.clear()
            run_tests(self.session, theirs, self.folder / f"process{os.getpid()}")
            return True
        theirs.close()
        self.children[ours] = Child(pid)
        return False

    def take(self, connection: Connection, kind: str, value: Any) -> None:
        child, hook = self.children[connection], self.session.config.hook
        if kind == "next":
            stopping = self.session.shouldfail or self.session.shouldstop
            found = None if stopping or not self.waiting else self.waiting.popleft()
            child.given = [*child.given[-1:], *([found] if found else [])]
            connection.send(found)
        elif kind == "start":
            child.running = value
            item = self.session.items[value]
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        elif kind == "report":
            report = hook.pytest_report_from_serializable(config=self.session.config, data=value)
            hook.pytest_runtest_logreport(report=report)
        else:
            item = self.session.items[value]
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            child.running = None
            self.missing.discard(value)

    def end(self, connection: Connection) -> bool:
        """Forget a process that has ended. If it was in a test, that fails, and a new process runs the others."""
        child = self.children.pop(connection)
        connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        if (place := child.running) is None:
            return False
        item = self.session.items[place]
        text = f"the process of the test ended with {code}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        item.config.hook.pytest_runtest_logreport(report=report)
        self.missing.discard(place)
        at = next(n for n, (start, stop) in enumerate(child.given) if start <= place < stop)
        rest = [(place + 1, child.given[at][1]), *child.given[at + 1 :]]
        self.waiting.extendleft(reversed([part for part in rest if part[0] < part[1]]))
        return bool(self.waiting) and self.start()


@dataclass(eq=False)  # plugins are hashed
class Reporter:
    """Sends what happens in a process to its parent, and ends the tests when the parent has ended."""

    session: pytest.Session
    connection: Connection

    def send(self, kind: str, value: Any) -> None:
        try:
            self.connection.send((kind, value))
        except BrokenPipeError:
            self.session.shouldstop = "the parent process has ended"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self.session.config.hook.pytest_report_to_serializable(config=self.session.config, report=report)
        self.send("report", data)

    def iter_places(self) -> Iterator[tuple[int, int | None]]:
        """Yield the places of the tests to run, each with the next one, so that fixtures which both use are kept."""
        given = self.ask()
        while given is not None:
            yield from pairwise(range(*given))
            last, given = given[1] - 1, self.ask()
            yield last, None if given is None else given[0]

    def ask(self) -> Any:
        self.send("next", None)
        return receive(self.connection)


def receive(connection: Connection) -> Any:
    """Return a message, or None when the other process has ended."""
    try:
        return connection.recv()
    except (EOFError, ConnectionResetError):
        return None


def run_tests(session: pytest.Session, connection: Connection, folder: Path) -> None:
    """Run the tests that the parent hands out."""
    config, reporter = session.config, Reporter(session, connection)
    for name in NOT_IN_CHILDREN:
        if config.pluginmanager.has_plugin(name):
            config.pluginmanager.unregister(name=name)
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # the parent and its other children write to the same files
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.option.basetemp = folder
    _pytest.tmpdir.pytest_configure(config)
    config.pluginmanager.register(reporter, "parallel-reporter")
    for place, following in reporter.iter_places():
        reporter.send("start", place)
        item = session.items[place]
        item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=None if following is None else session.items[following]
        )
        reporter.send("finish", place)
        if session.shouldfail or session.shouldstop:
            break
