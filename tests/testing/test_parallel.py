"""Tests that run in several processes: what is reported, how long fixtures live, and processes that end."""

from pathlib import Path

import pytest

TESTS = str(Path(__file__).parent.parent)
FIXTURE = """
import pytest

@pytest.fixture(scope="session")
def opened():
    with open("opened", "a") as file:
        file.write("x")
    yield
    with open("closed", "a") as file:
        file.write("x")
"""
FILE = """
import os
import pytest

@pytest.mark.parametrize("n", range(4))
def test_number(n, opened, tmp_path):
    if n == 1:
        os._exit(7) if {ends} else pytest.fail("a failure")
"""


def run_in_two_processes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, *options: str, ends: bool = False
) -> pytest.RunResult:
    """Run five files with four tests each, of which one fails or ends its process."""
    monkeypatch.setenv("PYTHONPATH", TESTS)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")
    pytester.makeconftest(FIXTURE)
    pytester.makepyfile(**{f"test_{name}": FILE.replace("{ends}", str(ends)) for name in "abcde"})
    return pytester.runpytest_subprocess("-q", "-p", "parallel", "--processes", "2", *options)


def test_every_test_is_reported_once_and_fixtures_live_as_long_as_a_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_two_processes(pytester, monkeypatch).assert_outcomes(passed=15, failed=5)
    opened, closed = (len((pytester.path / name).read_text()) for name in ("opened", "closed"))
    assert opened == closed <= 2


def test_a_test_that_ends_its_process_fails_and_the_others_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_in_two_processes(pytester, monkeypatch, ends=True)
    done.assert_outcomes(passed=15, failed=5)
    assert "the process of the test ended with 7" in done.stdout.str()


def test_the_first_failure_can_end_all_processes(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes = run_in_two_processes(pytester, monkeypatch, "-x").parseoutcomes()
    assert outcomes["failed"] in (1, 2)
    assert outcomes["passed"] < 15
