"""Every Python example in the documentation runs, page by page, from top to bottom."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def examples(page: Path) -> list[CodeType]:
    text = page.read_text()
    blocks = []
    for match in BLOCK.finditer(text):
        # Blank lines in front, so that a traceback shows the line of the page.
        source = "\n" * text[: match.start(1)].count("\n") + match[1]
        blocks.append(compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    return blocks


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: str(page.relative_to(ROOT))
)
@pytest.mark.usefixtures("no_telemetry")
async def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for code in examples(page):
        outcome = eval(code, names)
        if inspect.iscoroutine(outcome):
            await outcome


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout
