"""Snapshots, forks, transactions and checkpoints."""

import asyncio
import sys
from pathlib import Path

import pytest

from factories.worker_fixtures import in_one_mode
from standfast.workers import SandboxPolicy, SnapshotPoint, WorkerRequestFailed, WorkerSession


async def test_a_rollback_returns_to_the_snapshot_exactly(session):
    await session.run("items = [1]; alias = items\ndef f(): return items")
    point = await session.snapshot()
    await session.run("items.append(2); alias = None; del f")
    await session.rollback(point)
    assert (await session.run("[items, alias is items, f()]")).value == [[1], True, [1]]


async def test_a_snapshot_keeps_objects_that_cannot_be_pickled(session):
    await session.run("gen = (i for i in range(5)); next(gen)")
    point = await session.snapshot()
    await session.run("list(gen)")
    await session.rollback(point)
    assert (await session.run("list(gen)")).value == [1, 2, 3, 4]


async def test_a_snapshot_can_be_restored_repeatedly(session):
    await session.run("n = 0")
    point = await session.snapshot()
    for _ in range(3):
        await session.run("n += 1")
        await session.rollback(point)
        assert (await session.run("n")).value == 0


async def test_snapshots_can_be_restored_in_any_order(session):
    points = []
    for n in range(4):
        await session.run(f"n = {n}")
        points.append(await session.snapshot())
    for n in (2, 1, 3, 0, 0, 3, 2):
        await session.rollback(points[n])
        assert (await session.run("n")).value == n
    for n in (1, 3):
        await session.drop(points[n])
        with pytest.raises(WorkerRequestFailed):
            await session.rollback(points[n])
    for n in (2, 0, 2):
        await session.rollback(points[n])
        assert (await session.run("n")).value == n


async def test_snapshots_of_different_futures_are_all_kept(session):
    await session.run("path = []")
    start = await session.snapshot()
    ends = []
    for n in range(10):
        await session.rollback(start)
        await session.run(f"path.append({n})")
        ends.append(await session.snapshot())
    for n in (9, 0, 5):
        await session.rollback(ends[n])
        assert (await session.run("path")).value == [n]
    for point in (start, *ends):
        await session.drop(point)
    assert (await session.snapshot()).hazards == ()


DRAWS = """
import random
import numpy as np
generator = np.random.default_rng(5)
np.random.seed(7)
random.gauss(0, 1)
def draw():
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), float(generator.random())]
"""


@in_one_mode
@pytest.mark.parametrize("copy", ["rollback", "rollback twice", "fork", "transaction"])
async def test_random_numbers_continue_after_a_copy_as_in_the_original(session, copy):
    await session.run(DRAWS)
    point = await session.snapshot()
    expected = (await session.run("[draw(), draw()]")).value
    await session.rollback(point)
    if copy == "rollback twice":
        await session.run("draw()")
        await session.rollback(point)
    if copy == "transaction":
        await session.run("draw()", transaction="rollback_always")
    if copy == "fork":
        fork = await session.fork()
        assert (await fork.run("[draw(), draw()]")).value == expected
        await fork.terminate()
    assert (await session.run("[draw(), draw()]")).value == expected


@in_one_mode
async def test_an_unknown_point_is_refused_and_nothing_happens(session):
    await session.run("x = 1")
    with pytest.raises(WorkerRequestFailed) as caught:
        await session.rollback(SnapshotPoint("nowhere"))
    assert caught.value.kind == "NotFound"
    assert (await session.run("x")).value == 1


async def test_a_dropped_point_is_gone(session):
    point = await session.snapshot()
    await session.drop(point)
    with pytest.raises(WorkerRequestFailed):
        await session.rollback(point)


async def test_threads_are_reported_as_a_hazard(session):
    await session.run(
        "import threading; stop = threading.Event(); threading.Thread(target=stop.wait, daemon=True).start()"
    )
    point = await session.snapshot()
    assert any("threads" in hazard for hazard in point.hazards)
    await session.run("stop.set()")


async def test_a_plain_session_has_no_hazards(session):
    assert (await session.snapshot()).hazards == ()


async def test_interrupts_and_deaths_are_noticed_after_a_rollback(session):
    await session.rollback(await session.snapshot())
    result = await session.run("import time; time.sleep(60)", timeout=0.1)
    assert (result.timed_out, result.state) == (True, "preserved")
    result = await session.run("import os; os._exit(9)")
    assert (result.state, result.error.cause) == ("lost", "exit")


async def test_a_fork_is_a_second_session_with_the_same_variables(session):
    await session.run("x = [1, 2]")
    fork = await session.fork()
    try:
        await fork.run("x.append(3)")
        assert (await fork.run("x")).value == [1, 2, 3]
        assert (await session.run("x")).value == [1, 2]
        assert (await fork.run("print('mine')")).stdout == "mine\n"
    finally:
        await fork.shutdown()
    assert (await session.run("x")).value == [1, 2]


async def test_a_fork_lists_what_was_not_copied(session):
    fork = await session.fork()
    assert fork.info.metadata == {**session.info.metadata, "hazards": ()}
    await fork.terminate()
    await session.run("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()")
    fork = await session.fork()
    assert "threads" in fork.info.metadata["hazards"][0]
    await fork.terminate()


async def test_a_fork_outlives_its_origin(session):
    await session.run("x = 5")
    fork = await session.fork()
    await session.terminate()
    assert (await fork.run("x")).value == 5
    await fork.shutdown()


async def test_the_death_of_a_fork_does_not_affect_its_origin(session):
    fork = await session.fork()
    result = await fork.run("import os; os._exit(4)")
    assert result.error.cause == "exit"
    await fork.terminate()
    assert (await session.run("'alive'")).value == "alive"


async def test_a_failed_transaction_leaves_no_trace(session):
    await session.run("balance = 10")
    result = await session.run("balance = 0\nprint('tried')\n1 / 0", transaction="rollback_on_failure")
    assert (result.rolled_back, result.error.exception_type, result.stdout) == (
        True,
        "ZeroDivisionError",
        "tried\n",
    )
    assert (await session.run("balance")).value == 10


async def test_a_transaction_that_succeeds_is_kept(session):
    result = await session.run("balance = 3\nbalance", transaction="rollback_on_failure")
    assert (result.value, result.rolled_back) == (3, False)
    assert (await session.run("balance")).value == 3


async def test_a_trial_is_always_undone(session):
    result = await session.run("x = 1\nx", transaction="rollback_always")
    assert (result.value, result.rolled_back) == (1, True)
    assert (await session.run("'x' in dir()")).value is False


async def test_transactions_in_a_row_leave_no_processes_behind(session):
    for n in range(5):
        await session.run(f"x = {n}; 1/0", transaction="rollback_on_failure")
        await session.run(f"x = {n}", transaction="rollback_on_failure")
    await session.run("1")
    assert session.usage().processes <= 3


async def test_a_checkpoint_moves_everything_to_another_session(session, start):
    await session.run(
        "import math\nfrom math import pi as p\n"
        "class Point:\n    def __init__(self, x): self.x = x\n"
        "def area(r): return math.pi * r * r\n"
        "async def later(): return 1\n"
        "a = Point(3); b = a; both = [a, b]\nscale = 2\nf = lambda v: v * scale"
    )
    saved = await session.checkpoint("one")
    assert saved.lost == {}
    other = await start()
    restored = await other.restore(saved)
    assert {"Point", "a", "area", "math", "f", "later"} <= set(restored.kept)
    code = "[isinstance(a, Point), a is b, both[0] is a, a.x, area(1) == math.pi, f(4), await later()]"
    assert (await other.run(code)).value == [True, True, True, 3, True, 8, 1]


@in_one_mode
async def test_a_checkpoint_lists_what_it_could_not_keep(session):
    await session.run("good = 1; bad = (i for i in range(3)); import threading; lock = threading.Lock()")
    saved = await session.checkpoint()
    assert set(saved.lost) == {"bad", "lock"}
    assert "good" in saved.kept
    assert all(saved.lost.values())


@in_one_mode
async def test_a_restore_replaces_or_adds(session):
    await session.run("x = 1")
    saved = await session.checkpoint()
    await session.run("x = 2; y = 3")
    await session.restore(saved, clear_existing=False)
    assert (await session.run("[x, y]")).value == [1, 3]
    await session.restore(saved)
    assert (await session.run("'y' in dir()")).value is False


async def test_a_checkpoint_of_version_0_1_0_under_its_former_name_is_restored(start):
    data = (Path(__file__).parents[1] / "golden" / "worker.checkpoint").read_bytes()
    session = await start()
    if sys.version_info[:2] != (3, 11):
        with pytest.raises(WorkerRequestFailed, match=r"written by Python 3\.11"):
            await session.restore(data)
        return
    await session.restore(data)
    assert (await session.run("[x, names]")).value == [41, ["ann", "bob"]]


@in_one_mode
@pytest.mark.parametrize("damage", ["foreign", "cut", "flipped"])
async def test_a_bad_checkpoint_is_refused_and_changes_nothing(session, damage):
    await session.run("x = 1")
    data = (await session.checkpoint()).data
    bad = {"foreign": b"\x80\x04pickle", "cut": data[:-3], "flipped": data[:-1] + bytes([data[-1] ^ 1])}[damage]
    await session.run("x = 2")
    with pytest.raises(WorkerRequestFailed) as caught:
        await session.restore(bad)
    assert caught.value.kind == "BadCheckpoint"
    assert (await session.run("x")).value == 2


async def test_a_checkpoint_is_never_loaded_in_the_host(config, tmp_path):
    """A checkpoint that writes a file when unpickled writes it in the worker's world, not in ours."""
    mark = tmp_path / "mark"
    async with WorkerSession() as session:
        await session.run(
            f"class Bomb:\n    def __reduce__(self):\n        return (exec, (\"open({str(mark)!r}, 'w')\",))\nb = Bomb()"
        )
        saved = await session.checkpoint()
        with pytest.raises(WorkerRequestFailed):
            await session.restore(saved)
    assert not mark.exists()


@pytest.mark.parametrize("loss", ["sys.stdout = None", "sys.stdout.close()", "sys.stderr = object()"])
async def test_a_rollback_works_without_standard_streams(session, loss):
    await session.run(f"import sys; x = 1; {loss}")
    point = await session.snapshot()
    await session.run("x = 2")
    await session.rollback(point)
    failed = await session.run("x = 3; 1 / 0", transaction="rollback_on_failure")
    assert (failed.error.exception_type, failed.rolled_back) == ("ZeroDivisionError", True)
    assert (await session.run("x")).value == 1


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: os.waitpid(-1, os.WNOHANG)"])
async def test_code_that_reaps_its_children_does_not_reap_snapshots(session, handler):
    await session.run(f"import os, signal; x = 1; signal.signal(signal.SIGCHLD, {handler})")
    point = await session.snapshot()
    await session.run("x = 2")
    await session.rollback(point)
    assert (await session.run("x")).value == 1
    assert (await session.run("callable(signal.getsignal(signal.SIGCHLD))")).value is handler.startswith("lambda")


async def test_a_copy_above_the_process_limit_is_refused_and_the_worker_continues(sandboxed):
    session = await sandboxed(sandbox=SandboxPolicy(require="namespaces", processes=8))
    await session.run("x = 0")
    points = [await session.snapshot() for _ in range(7)]
    with pytest.raises(WorkerRequestFailed, match="CannotCopy"):
        await session.snapshot()
    refused = await session.run("x = 1", transaction="rollback_on_failure")
    assert (refused.error.exception_type, refused.state) == ("CannotCopy", "preserved")
    with pytest.raises(WorkerRequestFailed, match="drop some snapshots"):
        await session.rollback(points[0])
    with pytest.raises(WorkerRequestFailed, match="CannotCopy"):
        await session.fork()
    assert (await session.run("x = 2; x")).value == 2
    await session.drop(points.pop())
    await session.drop(points.pop())
    await session.rollback(points[0])
    assert (await session.run("x")).value == 0


async def test_a_snapshot_whose_process_was_killed_cannot_be_restored(sandboxed):
    session = await sandboxed()
    await session.run("import os; x = 1")
    point = await session.snapshot()
    await session.run(
        "for p in os.listdir('/proc'):\n    if p.isdigit() and int(p) not in (1, os.getpid()): os.kill(int(p), 9)"
    )
    with pytest.raises(WorkerRequestFailed, match="its process has ended"):
        await session.rollback(point)
    assert (await session.run("x = 2; x")).value == 2


@pytest.mark.parametrize("deed", ["print('x' * 200)", "display('x' * 50_000)"])
async def test_threads_that_write_during_a_snapshot_do_not_deadlock_the_copy(session, deed):
    await session.run(
        f"import threading\ndef write():\n    while True: {deed}\n"
        "def begin():\n    for _ in range(3): threading.Thread(target=write, daemon=True).start()\nbegin()"
    )
    for _ in range(15):
        async with asyncio.timeout(60):
            point = await session.snapshot()
            assert point.hazards
            await session.rollback(point)
            assert (await session.run("begin()")).ok
            await session.drop(point)


@in_one_mode
async def test_an_object_that_raises_in_a_checkpoint_does_not_end_the_worker(session):
    await session.run("class Odd:\n    def __reduce__(self): raise SystemExit\nodd = Odd(); x = 1")
    assert (await session.checkpoint()).lost["odd"].startswith("SystemExit")
    await session.run("Odd.__reduce__ = lambda self: (_ for _ in ()).throw(KeyboardInterrupt)")
    assert (await session.checkpoint()).lost["odd"].startswith("KeyboardInterrupt")
    assert (await session.run("x")).value == 1
