"""The leak check fails tests that leak, and no others."""

from pathlib import Path

import pytest

import standfast

SOURCE = Path(standfast.__file__).parent.parent

CLEAN = """
import asyncio, atexit, os, subprocess, sys, threading
import pytest

async def forever():
    await asyncio.Event().wait()

leaked = []
atexit.register(lambda: [process.kill() for process in leaked if isinstance(process, subprocess.Popen)])
"""


@pytest.fixture
def outcomes(pytester):
    """Run tests in another process with the leak check; return the outcome of each."""

    def run(tests: str) -> dict[str, str]:
        pytester.makeini(
            f"[pytest]\npythonpath = {SOURCE}\nasyncio_mode = auto\n"
            "addopts = --strict-markers -p no:cacheprovider -p no:hypothesispytest\n"
        )
        pytester.makeconftest("pytest_plugins = ['standfast.testing.leaks']")
        pytester.makepyfile(CLEAN + tests)
        result = pytester.runpytest_subprocess("-rA", "--tb=short")
        run.output = result.stdout.str()
        lines = [line.split() for line in result.outlines if line.startswith(("PASSED", "FAILED", "ERROR "))]
        found: dict[str, str] = {}
        for outcome, name in ((line[0], line[1]) for line in lines if "::" in line[1]):
            found[name.split("::")[1]] = outcome  # An error in teardown is listed after the pass.
        return found

    return run


def test_each_kind_of_leak_fails_its_test(outcomes):
    found = outcomes("""
async def test_task():
    leaked.append(asyncio.create_task(forever(), name="left alone"))

def test_process():
    leaked.append(subprocess.Popen(["sleep", "60"]))

def test_zombie():
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    leaked.append(process)

def test_thread():
    thread = threading.Thread(target=threading.Event().wait, name="left running", daemon=True)
    thread.start()

def test_descriptor():
    leaked.append(open(os.devnull))

def test_descriptors_of_a_pipe():
    leaked.append(os.pipe())

async def test_task_of_a_fixture(pump):
    pass

@pytest.fixture
async def pump():
    task = asyncio.create_task(forever())
    yield
    leaked.append(task)
""")
    assert found == dict.fromkeys(
        [
            "test_task",
            "test_process",
            "test_zombie",
            "test_thread",
            "test_descriptor",
            "test_descriptors_of_a_pipe",
            "test_task_of_a_fixture",
        ],
        "ERROR",
    )
    for named in ("task 'left alone'", "(sleep 60)", "thread 'left running'", "/dev/null", "pipe:["):
        assert named in outcomes.output


def test_a_test_that_leaks_nothing_passes(outcomes):
    found = outcomes("""
@pytest.fixture(scope="session")
def server():
    process = subprocess.Popen(["sleep", "60"], stdout=subprocess.PIPE)
    thread = threading.Thread(target=process.wait)
    thread.start()
    yield process
    process.kill()
    thread.join()
    process.stdout.close()

@pytest.fixture
async def pump():
    task = asyncio.create_task(forever())
    yield
    task.cancel()
    await asyncio.wait({task})

async def test_everything_put_away(pump, tmp_path):
    task = asyncio.create_task(forever())
    task.cancel()
    await asyncio.wait({task})
    with open(tmp_path / "file", "w"):
        process = subprocess.Popen(["true"])
    process.wait()
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

async def test_a_subprocess_of_the_loop():
    process = await asyncio.create_subprocess_exec("true", stdout=asyncio.subprocess.PIPE)
    await process.communicate()

def test_a_cycle_with_a_descriptor_is_garbage():
    holder = type("Holder", (), {})()
    holder.me, holder.fd = holder, os.open(os.devnull, os.O_RDONLY)
    type(holder).__del__ = lambda self: os.close(self.fd)

def test_needs_a_server_first(request):
    request.getfixturevalue("server")

def test_needs_the_server_again(server):
    pass

@pytest.mark.leaks("fd")
def test_leaves_one_on_purpose():
    leaked.append(open(os.devnull))

def test_is_not_blamed_for_the_one_before():
    pass
""")
    assert len(found) == 7
    assert set(found.values()) == {"PASSED"}, outcomes.output


def test_the_marker_only_allows_the_kinds_that_it_names(outcomes):
    found = outcomes("""
@pytest.mark.leaks("thread")
def test_says_the_wrong_thing():
    leaked.append(open(os.devnull))
""")
    assert found == {"test_says_the_wrong_thing": "ERROR"}


def test_tasks_leaked_in_a_shared_loop_are_reported(outcomes):
    found = outcomes("""
@pytest.mark.asyncio(loop_scope="module")
async def test_leaves_a_task():
    leaked.append(asyncio.create_task(forever(), name="left in the shared loop"))

@pytest.mark.asyncio(loop_scope="module")
async def test_leaves_none():
    await asyncio.sleep(0)
""")
    assert found == {"test_leaves_a_task": "ERROR", "test_leaves_none": "PASSED"}
    assert "left in the shared loop" in outcomes.output
