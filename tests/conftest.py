import signal

import pytest

pytest_plugins = ["pytester", "standfast.testing.leaks", "servers", "redis_server", "telemetry"]

TEST_TIMEOUT = 600
"""Seconds after which a test is taken to hang; far above what any test needs on a busy machine."""

LONG_FILES = (
    "tests/test_docs.py",
    "tests/test_public_names.py",
    "tests/cli/",
    "tests/examples/",
    "tests/testing/",
    "tests/workers/",
    "tests/security/",
    "tests/store/test_sqlalchemy_contract.py",
    "tests/history/test_session_contract_stacks.py",
)


def pytest_configure():
    """Restore SIGINT: a background job of a shell ignores it, and the programs that tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Put the files with the longest tests first, so that the processes of ``make test`` end at about the same time."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONG_FILES))


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
