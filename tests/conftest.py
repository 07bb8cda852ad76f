import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester", "parallel", "standfast.testing.leaks", "servers", "redis_server", "telemetry", "commands"]

# Nothing depends on the speed of the machine.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=30)
settings.register_profile("soak", settings.get_profile("tests"), max_examples=1000)
settings.load_profile("tests")

TEST_TIMEOUT = 600
"""Seconds after which a test is taken to hang; far above what any test needs on a busy machine."""

LONG_FILES = (
    "tests/store/test_sqlalchemy_contract.py",
    "tests/workers/test_worker_session.py",
    "tests/runtime/test_crashes.py",
    "tests/history/test_session_contract_stacks.py",
    "tests/test_docs.py",
    "tests/test_openai_agents_programs.py",
    "tests/examples/test_support_desk_page.py",
    "tests/store/test_sqlalchemy.py",
    "tests/runs/test_run_modes.py",
    "tests/workers/",
    "tests/cli/",
    "tests/runtime/",
    "tests/server/",
    "tests/store/",
    "tests/security/",
    "tests/examples/",
    "tests/test_",
)
"""Files that take long, the longest first: those that take seconds come after them and fill the gaps at the end."""


def pytest_configure():
    """Prepare the process.

    Garbage is collected less often: each collection visits the many objects of the tests. SIGINT is restored, because a
    background job of a shell ignores it, and the programs that tests start would inherit that.

    Clients trust no certificate authority: every one of them would read the whole list, in 20 ms, for servers that they
    do not ask by TLS.
    """
    os.environ.pop("SSL_CERT_FILE", None)
    os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
    gc.set_threshold(50_000, 20, 50)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Put the longest files first, so that the processes of ``make test`` end at about the same time."""

    def get_place(item):
        return next((place for place, name in enumerate(LONG_FILES) if item.nodeid.startswith(name)), len(LONG_FILES))

    items.sort(key=get_place)


def pytest_collection_finish():
    """Exempt what exists now from garbage collection: each collection would visit the objects of all tests.

    The leak check collects garbage after every test that leaves something behind, which took half a second each time.
    """
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail tests that hang, except soaks."""

    def fail(*_):
        pytest.fail(f"the test did not end within {TEST_TIMEOUT} seconds")

    if item.get_closest_marker("soak") is not None or not hasattr(signal, "SIGALRM"):
        return (yield)
    before = signal.signal(signal.SIGALRM, fail)
    # Again and again, because an event loop only logs an exception that it meets in a callback.
    signal.setitimer(signal.ITIMER_REAL, TEST_TIMEOUT, 5.0)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Escape lone surrogates in captured logs: they would crash the process that collects the reports."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
