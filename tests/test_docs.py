"""Every Python example in the documentation runs, page by page, from top to bottom."""

import ast
import inspect
import re
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).parent.parent
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
async def test_the_examples_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for code in examples(page):
        outcome = eval(code, names)
        if inspect.iscoroutine(outcome):
            await outcome
