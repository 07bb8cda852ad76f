import signal

import pytest

pytest_plugins = ["pytester", "standfast.testing.leaks", "servers", "redis_server", "telemetry"]

PATIENCE = 180


def pytest_configure():
    """What a shell has put into the background is deaf to Ctrl-C, and so would be the programs that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """A test that hangs fails; only soaks may take long."""

    def give_up(*_):
        pytest.fail(f"the test did not end within {PATIENCE} seconds")

    if item.get_closest_marker("soak") is not None or not hasattr(signal, "SIGALRM"):
        return (yield)
    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(PATIENCE)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Half characters that a test has logged would end the process that gathers the reports."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report
