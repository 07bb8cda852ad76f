"""The measuring stick's own machinery, on groups and peers made up for it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.environments import Environment, Peer, PeerMissing, peers_started
from bench.machine import warning
from bench.report import Report
from bench.figures import at_least, at_most, clocked, in_turns, side_by_side, table, without_peer

ROOT = Path(__file__).parent.parent
RIVAL = """
from bench.competitors.server import serve

async def double(number):
    print("a library that talks on standard output")
    return 2 * number

async def fail():
    raise ValueError("no such thing")

async def die():
    raise SystemExit(3)

serve({"double": double, "fail": fail, "die": die})
"""
DRAWING = """
import sys
from pathlib import Path
from bench.report import Report
from bench.figures import Series

report = Report(quick=True)
report.keep("drawn", [
    Series("a turn, no session", "standfast", (10, 100), (0.001, 0.002)),
    Series("start", "sandboxed worker", (0, 1, 2), (0.01, 0.02, 0.03)),
], load=0.0, seconds=1.0)
paths = report.write(Path(sys.argv[1]))
print(paths[0].read_text())
"""


def fast():
    yield at_most("a thing", "1 us", "2 us", 0.5, 1)
    yield at_least("another thing", "3 us", "2 us", 0.67, 3)
    yield without_peer("a third thing", "4 us", ">= 2x")


def broken():
    yield at_most("never shown", "1 us", "2 us", 0.5, 1)
    raise RuntimeError("the group is broken")


@pytest.fixture
def rival(tmp_path, monkeypatch):
    (tmp_path / "talkative_rival.py").write_text(RIVAL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Peer.started("rival", sys.executable, "talkative_rival") as peer:
        yield peer


def test_a_run_shows_each_group_and_writes_figures_and_machine(tmp_path, capsys):
    report = Report(quick=False)
    report.measure({"fast": fast})
    [path] = report.write(tmp_path / "results")
    assert "another thing  3 us  2 us     0.67x  >= 3x   MISSED" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert [figure["met"] for figure in written["groups"]["fast"]["figures"]] == [True, False, None]
    assert written["machine"]["cores"] >= 1
    assert len(written["load_before"]) == len(written["load_after"]) == 3


def test_what_can_be_drawn_is_drawn_as_png_and_svg(tmp_path):
    # In a process of its own: matplotlib keeps the files of its fonts open.
    done = subprocess.run([sys.executable, "-c", DRAWING, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["groups"]["drawn"]["series"][0]["seconds"] == [0.001, 0.002]
    drawn = {path.name.split("-", 2)[2]: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".json"}
    assert sorted(drawn) == ["starts.png", "starts.svg", "turns.png", "turns.svg"]
    assert drawn["turns.png"].startswith(b"\x89PNG")
    assert b"<svg" in drawn["starts.svg"]


def test_a_group_that_fails_is_named_at_the_end_and_costs_no_other(tmp_path, capsys):
    report = Report(quick=False)
    report.measure({"broken": broken, "fast": fast})
    assert "the group is broken" in capsys.readouterr().err
    closing = report.closing()
    assert "FAILED: broken" in closing
    assert "MISSED: fast: another thing: 3 us against 2 us (target >= 3x)" in closing
    assert "not compared: fast: a third thing: 4 us against no peer (target >= 2x)" in closing
    assert "1 of 3 targets met" in closing
    assert json.loads(report.write(tmp_path)[0].read_text())["failed"] == ["broken"]


def test_a_line_without_its_peer_is_neither_met_nor_missed():
    assert table([without_peer("x", "1 us", ">= 2x")]).splitlines()[1].split() == [
        *("x", "1", "us", "no", "peer", ">=", "2x", "not", "compared")
    ]


def test_a_loaded_machine_is_warned_about_beyond_half_its_cores():
    assert warning(1.0, 2) == ""
    assert "load average 1.10 on 2 cores" in warning(1.1, 2)


async def test_rivals_take_turns_in_both_directions_after_a_round_that_does_not_count():
    order = []

    def rival(name, seconds):
        async def taken():
            order.append(name)
            return seconds.pop(0)

        return taken

    rivals = {"a": rival("a", [9.0, 1.0, 2.0]), "b": rival("b", [9.0, 3.0, 4.0])}
    assert await in_turns(rivals, 2) == {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    assert order == ["a", "b", "b", "a", "a", "b"]


async def test_a_round_is_timed_per_call():
    calls = []

    async def work():
        calls.append(1)

    found = await side_by_side({"work": clocked(work, calls=10, each=4)}, rounds=3)
    assert len(calls) == 40
    assert 0 < found["work"] < 0.01


def test_a_peer_answers_and_may_print_what_it_likes(rival):
    assert rival.ask("double", number=21) == 42
    assert rival.ask("double", number=4) == 8


def test_a_peer_that_fails_can_be_asked_again(rival):
    with pytest.raises(PeerMissing, match="rival failed at fail: ValueError: no such thing"):
        rival.ask("fail")
    assert rival.ask("double", number=1) == 2


def test_a_peer_that_ends_is_missing(rival):
    with pytest.raises(PeerMissing, match="rival ended with code 3 when asked for die"):
        rival.ask("die")
    with pytest.raises(PeerMissing):
        rival.ask("double", number=1)


def test_a_peer_that_cannot_be_installed_is_left_out(capsys):
    nowhere = Environment("/proc/nowhere", ("anything",))
    with peers_started({"gone": (nowhere, ("anything",))}) as going:
        assert going == {}
    assert "without gone: cannot install anything" in capsys.readouterr().err


def test_an_unknown_group_is_refused_with_those_there_are():
    done = subprocess.run([sys.executable, "-m", "bench", "nonsense"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no group nonsense; there are history, runs" in done.stderr
