"""The documentation is correct: examples run, diagrams match the code, every public name has an entry."""

import gzip
import inspect
import json
import os
import re
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_reference
import foreign_resources
import griffe
import pytest
import state_diagrams
import typer
from docstrings import Fields
from draw_lifecycles import DRAWN, redraw
from mkdocs.exceptions import BuildError

import standfast
from commands import CommandProcess
from doc_pages import NOT_EXECUTED, PAGES, ROOT, Block, Shell, iter_blocks, run_page
from standfast.cli.app import app
from standfast.runtime._engine.events import EVENT_TYPES
from test_architecture import LEVELS

SOURCES = ROOT / "src" / "standfast"
PUBLIC = [
    "agents",
    "client",
    "fleet",
    "history",
    "lifecycle",
    "mcp",
    "models",
    "realtime",
    "realtime.local",
    "runs",
    "runtime",
    "sandbox",
    "sandbox.capabilities",
    "server",
    "testing",
    "tracing",
    "voice",
    "workers",
]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
RUNNABLE = ("python", "console")
EXECUTED = [page for page in PAGES if any(block.language in RUNNABLE for block in iter_blocks(page))]
ON_SERVERS = [page for page in EXECUTED if "DATABASE_URL" in page.read_text()]
ON_FOREIGN_SERVERS = [page for page in EXECUTED if "MONGODB_URL" in page.read_text()]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def servers_in_the_environment(postgres_tables_url: str, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", postgres_tables_url)
    monkeypatch.setenv("REDIS_URL", redis_url)


def read_golden_databases() -> Iterator[tuple[str, list[str]]]:
    golden = ROOT / "tests" / "golden"
    yield "checkpoints.db", read_golden(golden / "langgraph")["sqlite"]["sql"]
    yield "adk.db", read_golden(golden / "adk")["sql"]


def read_golden(folder: Path) -> Any:
    return json.loads(gzip.decompress(max(folder.glob("*.json.gz")).read_bytes()))


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with databases of other frameworks; modules that a page writes there are forgotten afterwards."""
    directory = tmp_path / "desk"
    directory.mkdir()
    for name, statements in read_golden_databases():
        with closing(sqlite3.connect(directory / name)) as db:
            db.executescript("\n".join(statements))
    monkeypatch.chdir(directory)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield directory
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(directory)):
            del sys.modules[name]


@pytest.fixture
def shell(tmp_path: Path, command_process: CommandProcess) -> Shell:
    programs = tmp_path / "programs"
    programs.mkdir()
    return Shell(programs, command_process)


@pytest.mark.parametrize(
    "page", [page for page in EXECUTED if page not in ON_SERVERS + ON_FOREIGN_SERVERS], ids=page_name
)
@pytest.mark.usefixtures("no_telemetry", "desk")
async def test_the_examples_of_a_page_run(page: Path, shell: Shell) -> None:
    await run_page(page, shell=shell)


@pytest.mark.parametrize("page", ON_SERVERS, ids=page_name)
@pytest.mark.usefixtures("servers_in_the_environment", "desk")
async def test_the_examples_of_a_page_run_on_real_servers(page: Path, shell: Shell) -> None:
    await run_page(page, shell=shell)


PASTED = [block for block in iter_blocks(ROOT / "README.md") if block.language == "python"]


@pytest.mark.parametrize("block", PASTED, ids=lambda block: f"line {block.line}")
def test_the_examples_of_the_readme_can_be_pasted_into_python_twice(block: Block, tmp_path: Path) -> None:
    prompt = subprocess.run(
        [sys.executable, "-m", "asyncio"], input=f"{block.body}\n\n{block.body}\n\nprint('to the end')\n", cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCES.parent)}, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    assert "Error" not in prompt.stderr
    assert "to the end" in prompt.stdout


@pytest.mark.parametrize("page", ["agents-and-tools", "durable-runs"])
def test_the_examples_of_a_first_guide_can_be_pasted_into_python(page: str, tmp_path: Path) -> None:
    blocks = iter_blocks(ROOT / "docs" / "how-to" / f"{page}.md")
    pasted = "\n\n".join(block.body for block in blocks if block.language == "python")
    prompt = subprocess.run(
        [sys.executable, "-m", "asyncio"], input=f"{pasted}\n\nprint('to the end')\n", cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(SOURCES.parent)}, capture_output=True, text=True, timeout=500, check=True,
    )  # fmt: skip
    assert "Error" not in prompt.stderr
    assert "to the end" in prompt.stdout


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_block_is_run_or_a_picture(page: Path) -> None:
    kinds = {block.language for block in iter_blocks(page) if block.title is None}
    assert kinds <= {*RUNNABLE, *NOT_EXECUTED}
    assert page.read_text().count("```") == 2 * len(list(iter_blocks(page)))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example: Path, tmp_path: Path, command_process: CommandProcess) -> None:
    done = command_process.run(str(example), directory=tmp_path, environment=os.environ)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_diagrams_are_drawn_from_the_tables(page: Path) -> None:
    assert page.read_text() == redraw(page.read_text()), "run: python docs/draw_lifecycles.py"


def test_diagrams_of_the_site_need_no_script() -> None:
    page = state_diagrams.on_page_markdown((ROOT / "docs" / "lifecycles.md").read_text())
    assert "RECONNECTING</text>" in page
    assert "mermaid" not in page


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ('<script src="https://example.com/a.js"></script>', True),
        ('<img alt="" src="http://example.com/a.png">', True),
        ('<link rel="stylesheet" href="https://example.com/a.css">', True),
        ("<style>p { background: url(https://example.com/a.png) }</style>", True),
        ('<pre class="mermaid">', True),
        ('<a href="https://example.com">elsewhere</a><script src="assets/a.js"></script><img src="a.svg">', False),
    ],
)
def test_a_site_that_loads_something_from_elsewhere_is_refused(text: str, refused: bool, tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text(f"<html>{text}</html>")
    with pytest.raises(BuildError, match="page/index") if refused else nullcontext():
        foreign_resources.on_post_build({"site_dir": str(tmp_path)})


def test_every_lifecycle_is_drawn() -> None:
    tables = {module_name(path) for path in SOURCES.rglob("*.py") if " = TransitionTable(\n" in path.read_text()}
    drawn = [found["module"] for page in PAGES for found in DRAWN.finditer(page.read_text())]
    assert set(drawn) == tables


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)


def documented() -> set[str]:
    """What the reference pages show: whole modules, or single names."""
    pages = (ROOT / "docs" / "reference").rglob("*.md")
    return {line.removeprefix("::: ") for page in pages for line in page.read_text().splitlines() if line[:4] == "::: "}


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_is_in_the_reference(package: str) -> None:
    shown = documented()
    stub = (SOURCES / package.replace(".", "/") / "__init__.pyi").read_text()
    pairs = re.findall(r"^from (\S+) import (\w+) as", stub, re.M)
    missing = [f"{home}.{name}" for home, name in pairs if home not in shown and f"{home}.{name}" not in shown]
    assert not missing


SHOP = '''
class Order:
    """An order."""

    number: str
    amount: float = field(default=1.0, kw_only=True)
    lines: list[str] = field(default_factory=list)
    _cache: int = 0
    note: str = ""
    """Free text."""


class OrderLost(Exception):
    """The order is gone."""

    code = "order-lost"
'''


def test_fields_without_a_docstring_are_listed_with_types_and_defaults(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    shop = griffe.load("shop", search_paths=[tmp_path], extensions=griffe.load_extensions(Fields()))
    assert shop["OrderLost"].docstring.value == "The order is gone.\n\n```python\ncode = 'order-lost'\n```"
    listed = "number: str\namount: float = 1.0\nlines: list[str] = list()"
    assert shop["Order"].docstring.value == f"An order.\n\n```python\n{listed}\n```"


def test_the_reference_of_the_command_line_names_every_command_and_shows_its_examples() -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reference/command-line.md"))
    lines = command_reference.on_page_markdown("", page=page).splitlines()
    fences = [line for line in lines if line.startswith("```")]
    assert fences == ["```console", "```"] * (len(fences) // 2)
    listed = [line for line in lines if line.startswith("* `") and "`: " in line]
    assert not [line for line in listed if line.startswith("* ``") or line.endswith("...")]
    assert "## `standfast sessions`" in lines
    assert "$ standfast demo --slow" in lines
    assert lines[lines.index("$ standfast demo --slow") - 1] == "```console"


@pytest.mark.parametrize("word", ["deploy", "timeout", "retry", "delete"])
def test_a_search_finds_a_guide(word: str) -> None:
    guides = [page for page in PAGES if page.parent.name == "how-to"]
    assert any(re.search(rf"\b{word}\b", page.read_text(), re.I) for page in guides)


MEMBER = re.compile(r"`(?:[\w.]*\.)?([A-Z]\w+)\.([a-z_]\w*)")
COMMAND = re.compile(r"`standfast ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_methods_and_commands_that_the_text_names_exist(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    public = {name: getattr(standfast, name) for name in standfast.__all__}
    for name, member in MEMBER.findall(prose):
        if inspect.isclass(public.get(name)):
            assert hasattr(public[name], member) or member in find_fields(public[name]), f"{name}.{member}"
    commands = typer.main.get_command(app).load_all().commands  # type: ignore[attr-defined]
    for word, second in COMMAND.findall(prose):
        assert word in commands, word
        assert not second or second in getattr(commands[word], "commands", {second}), f"{word} {second}"


def find_fields(cls: type) -> set[str]:
    """Return the fields that the class declares, and the attributes that its methods set."""
    declared = {name for base in cls.__mro__ for name in getattr(base, "__annotations__", {})}
    return declared | set(re.findall(r"self\.(\w+)", inspect.getsource(cls)))


def test_every_event_of_a_run_is_explained() -> None:
    text = (ROOT / "docs" / "how-to" / "run-events.md").read_text()
    types = {*EVENT_TYPES.values(), *(f"run.{how}" for how in ("started", "continued", "recovered", "suspended"))}
    types |= {f"run.{status}" for status in ("waiting", "completed", "failed", "cancelled")}
    types |= {"model.delta", "model.gap", "run.taken_over"}
    assert [name for name in types if f"`{name}`" not in text and not name.startswith("step.")] == []


def test_the_readme_names_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    text = (ROOT / "README.md").read_text()
    installed = re.findall(r"\.\[([\w,]+)\]", text)[0].split(",")
    named = {*installed, *re.findall(r"`([\w-]+)`", text.partition("Other extras:")[2].partition("\n\n")[0])}
    assert extras - named == {"examples", "all", "dev"}


def test_every_guarantee_is_given_once() -> None:
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "guarantees.md").read_text(), re.M)
    assert [row for row in {*rows} - {"guarantee"} if rows.count(row) > 1] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    missing = [page for page in PAGES[1:] if str(page.relative_to(ROOT / "docs")) not in navigation]
    assert not missing


def test_the_map_has_every_package_with_its_level() -> None:
    found = re.findall(r"^  (\w+)/ +(\d+)  ", (ROOT / "docs" / "architecture.md").read_text(), re.M)
    packages = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
    assert {name: int(level) for name, level in found} == {name: LEVELS[name] for name in packages}
