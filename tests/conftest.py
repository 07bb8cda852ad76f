import signal

import pytest

pytest_plugins = ["pytester", "standfast.testing.leaks", "servers", "redis_server", "telemetry"]

TEST_TIMEOUT = 600
"""Seconds after which a test is taken to hang; far above what any test needs on a busy machine."""


def pytest_configure():
    """Restore SIGINT: a background job of a shell ignores it, and the programs that tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail tests that hang, except soaks."""

    def fail(*_):
        pytest.fail(f"the test did not end within {TEST_TIMEOUT} seconds")

    if item.get_closest_marker("soak") is not None or not hasattr(signal, "SIGALRM"):
        return (yield)
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(TEST_TIMEOUT)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Escape lone surrogates in captured logs: they would crash the process that collects the reports."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
