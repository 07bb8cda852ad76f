"""The data analyst: real workers, code by fixed rules."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest
from example_processes import run_example

from standfast import FunctionModel
from standfast.workers import PoolConfig, SessionPool

CSV = "month,product,euros\n2025-01,tea,10\n2025-02,tea,30\n2025-01,cocoa,5\n2025-02,cocoa,2\n"
QUESTIONS = ["What do we sell?", "Which month was the worst?"]
ANSWERS = ["Mostly tea, for 40.00 euros. I have drawn a chart.", "2025-01 was the worst month, with 15.0 euros."]


@pytest.mark.skipif(sys.platform != "linux", reason="workers that preload are forked")
async def test_two_files_are_analysed_concurrently_with_a_chart_each(tmp_path: Path) -> None:
    output = await run_example("data_analyst/analyst.py", "--out", str(tmp_path), cwd=tmp_path)
    assert "Model: fixed rules" in output
    assert "[north] analyst: Mostly coffee, for 7840.80 euros. I have drawn a chart." in output
    assert "[south] analyst: 2025-05 was the worst month, with 914.09 euros." in output
    charts = sorted(path.name for path in tmp_path.iterdir())
    assert len(charts) == 2
    if charts == ["north-chart.png", "south-chart.png"]:
        assert (tmp_path / charts[0]).read_bytes().startswith(b"\x89PNG")


async def test_it_works_without_libraries_and_keeps_its_variables(
    example: Callable[[str], ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analyst = example("data_analyst/analyst.py")
    monkeypatch.setattr(analyst, "LIBRARIES", ())
    data = tmp_path / "shop.csv"
    data.write_text(CSV)
    async with SessionPool(PoolConfig(min_idle=1, max_sessions=2)) as pool:
        model = FunctionModel(analyst.choose_step)
        assert await analyst.analyse(pool, data, QUESTIONS, model=model, out=tmp_path) == ANSWERS
    chart = ElementTree.fromstring((tmp_path / "shop-chart.svg").read_text())
    assert [text.text for text in chart.iter("{http://www.w3.org/2000/svg}text")] == ["tea", "cocoa"]
