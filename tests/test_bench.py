"""The machinery of the benchmarks, with made-up groups and competitors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.environments import Competitor, CompetitorUnavailable, Environment, start_competitors
from bench.figures import (
    at_least,
    at_most,
    format_table,
    make_timed_round,
    measure_in_turns,
    measure_medians,
    not_compared,
)
from bench.machine import get_load_warning
from bench.report import Report

ROOT = Path(__file__).parent.parent
COMPETITOR = """
from bench.competitors.server import serve

async def double(number):
    print("output of a library")
    return 2 * number

async def fail():
    raise ValueError("no such thing")

async def die():
    raise SystemExit(3)

serve({"double": double, "fail": fail, "die": die})
"""
DRAW = """
import sys
from pathlib import Path
from bench.report import Report
from bench.figures import Series

report = Report(quick=True)
report.add_group("plotted", [
    Series("a turn, no session", "standfast", (10, 100), (0.001, 0.002)),
    Series("start", "sandboxed worker", (0, 1, 2), (0.01, 0.02, 0.03)),
], load=0.0, seconds=1.0)
paths = report.write(Path(sys.argv[1]))
print(paths[0].read_text())
"""


def fast():
    yield at_most("a thing", "1 us", "2 us", 0.5, 1)
    yield at_least("another thing", "3 us", "2 us", 0.67, 3)
    yield not_compared("a third thing", "4 us", ">= 2x")


def broken():
    yield at_most("never shown", "1 us", "2 us", 0.5, 1)
    raise RuntimeError("the group is broken")


@pytest.fixture
def competitor(tmp_path, monkeypatch):
    (tmp_path / "printing_competitor.py").write_text(COMPETITOR)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Competitor.start("competitor", sys.executable, "printing_competitor") as peer:
        yield peer


def test_a_run_shows_each_group_and_writes_a_file(tmp_path, capsys):
    report = Report(quick=False)
    report.measure({"fast": fast})
    [path] = report.write(tmp_path / "results")
    assert "another thing  3 us  2 us         0.67x  >= 3x   MISSED" in capsys.readouterr().out
    written = json.loads(path.read_text())
    assert [figure["met"] for figure in written["groups"]["fast"]["figures"]] == [True, False, None]
    assert written["machine"]["cores"] >= 1
    assert len(written["load_before"]) == len(written["load_after"]) == 3


def test_series_are_plotted_as_png_and_svg(tmp_path):
    # In a separate process: matplotlib keeps its font files open.
    done = subprocess.run([sys.executable, "-c", DRAW, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["groups"]["plotted"]["series"][0]["seconds"] == [0.001, 0.002]
    drawn = {path.name.split("-", 2)[2]: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".json"}
    assert sorted(drawn) == ["starts.png", "starts.svg", "turns.png", "turns.svg"]
    assert drawn["turns.png"].startswith(b"\x89PNG")
    assert b"<svg" in drawn["starts.svg"]


def test_a_group_that_fails_is_reported_and_affects_no_other(tmp_path, capsys):
    report = Report(quick=False)
    report.measure({"broken": broken, "fast": fast})
    assert "the group is broken" in capsys.readouterr().err
    format_summary = report.format_summary()
    assert "FAILED: broken" in format_summary
    assert "MISSED: fast: another thing: 3 us against 2 us (target >= 3x)" in format_summary
    assert "not compared: fast: a third thing: 4 us against unavailable (target >= 2x)" in format_summary
    assert "1 of 3 targets met" in format_summary
    assert json.loads(report.write(tmp_path)[0].read_text())["failed"] == ["broken"]


def test_a_figure_without_its_competitor_is_neither_met_nor_missed():
    assert format_table([not_compared("x", "1 us", ">= 2x")]).splitlines()[1].split() == [
        *("x", "1", "us", "unavailable", ">=", "2x", "not", "compared")
    ]


def test_a_warning_is_shown_if_the_load_exceeds_half_the_cores():
    assert get_load_warning(1.0, 2) == ""
    assert "load average 1.10 on 2 cores" in get_load_warning(1.1, 2)


async def test_rounds_take_turns_in_both_directions_after_a_warm_up():
    order = []

    def competitor(name, seconds):
        async def measure_round():
            order.append(name)
            return seconds.pop(0)

        return measure_round

    rounds = {"a": competitor("a", [9.0, 1.0, 2.0]), "b": competitor("b", [9.0, 3.0, 4.0])}
    assert await measure_in_turns(rounds, 2) == {"a": [1.0, 2.0], "b": [3.0, 4.0]}
    assert order == ["a", "b", "b", "a", "a", "b"]


async def test_a_round_is_timed_per_call():
    calls = []

    async def work():
        calls.append(1)

    medians = await measure_medians({"work": make_timed_round(work, calls=10, each=4)}, rounds=3)
    assert len(calls) == 40
    assert 0 < medians["work"] < 0.01


def test_a_competitor_answers_and_may_print(competitor):
    assert competitor.ask("double", number=21) == 42
    assert competitor.ask("double", number=4) == 8


def test_a_competitor_can_be_used_again_after_a_failure(competitor):
    with pytest.raises(CompetitorUnavailable, match="competitor failed at fail: ValueError: no such thing"):
        competitor.ask("fail")
    assert competitor.ask("double", number=1) == 2


def test_a_competitor_that_exits_is_unavailable(competitor):
    with pytest.raises(CompetitorUnavailable, match="competitor ended with code 3 when asked for die"):
        competitor.ask("die")
    with pytest.raises(CompetitorUnavailable):
        competitor.ask("double", number=1)


def test_a_competitor_that_cannot_be_installed_is_left_out(capsys):
    nowhere = Environment("/proc/nowhere", ("anything",))
    with start_competitors({"gone": (nowhere, ("anything",))}) as running:
        assert running == {}
    assert "without gone: cannot install anything" in capsys.readouterr().err


def test_an_unknown_group_is_rejected_with_the_valid_ones():
    done = subprocess.run([sys.executable, "-m", "bench", "nonsense"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "unknown group nonsense; expected some of history, runs" in done.stderr
