"""Imports go down only, private subpackages stay private, and few packages import each heavy library."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "standfast"

LEVELS = {
    "base": 0,
    "lifecycle": 1,
    "tracing": 1,
    "store": 2,
    "agents": 2,
    "workers": 2,
    "workspaces": 3,
    "models": 4,
    "mcp": 4,
    "history": 4,
    "tool_calls": 4,
    "sandbox": 4,
    "runs": 5,
    "realtime": 6,
    "voice": 6,
    "runtime": 6,
    "cli": 7,
    "testing": 8,
}

# The packages that may import a heavy library; no other may, not even inside a function.
LIBRARY_USERS = {
    "openai": {"models", "history", "realtime", "voice"},
    "sqlalchemy": {"store", "history"},
    "redis": {"store", "history"},
    "cryptography": {"history"},
    "cloudpickle": {"workers"},
    "obstore": {"store"},
    "typer": {"cli"},
    "rich": {"cli"},
    "websockets": {"realtime", "voice"},
    "mcp": {"mcp"},
    "httpx2": {"mcp"},
    "anyio": {"mcp"},
    "opentelemetry": {"tracing"},
    "jsonschema": {"tool_calls"},
    "graphviz": {"agents"},
}


@functools.cache
def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


MODULES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path: Path) -> None:
    parts = path.relative_to(ROOT).parts
    if len(parts) == 1:
        return
    package = parts[0]
    assert package in LEVELS, f"{package} has no level yet: give it one here and in docs/architecture.md"
    for name in imports_of(path):
        if not name.startswith("standfast."):
            continue
        other = name.split(".")[1]
        if other in LEVELS and other != package:
            assert LEVELS[other] < LEVELS[package], f"{package} imports {name}, which is not below it"


def test_a_realtime_session_does_not_import_a_transport() -> None:
    transports = ("standfast.realtime.openai", "standfast.realtime.local")
    realtime = ROOT / "realtime"
    modules = [*realtime.glob("*.py"), *(realtime / "_session").glob("*.py")]
    modules.remove(realtime / "runner.py")  # It names the default model.
    assert [(path.name, name) for path in modules for name in imports_of(path) if name.startswith(transports)] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_private_subpackage_is_imported_only_by_the_package_around_it(path: Path) -> None:
    module = ".".join(("standfast", *path.relative_to(ROOT).with_suffix("").parts))
    for name in imports_of(path):
        owner, private, _ = name.partition("._")
        if private and owner.startswith("standfast.") and not name.startswith("standfast.cli"):
            assert module.startswith(f"{owner}."), f"{module} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_are_imported_only_by_the_packages_that_wrap_them(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for name in imports_of(path):
        library = name.split(".")[0]
        if library in LIBRARY_USERS and package != "testing":
            assert package in LIBRARY_USERS[library], f"{path.name} imports {library}"


def test_a_worker_process_imports_only_the_wire_format() -> None:
    for path in sorted((ROOT / "workers" / "child").rglob("*.py")):
        for name in imports_of(path):
            if name.startswith("standfast"):
                assert name.startswith(("standfast.workers.wire", "standfast.workers.child")), f"{path.name}: {name}"


LOGGERS = {"base/log.py", "cli/app.py", "mcp/_client/log_privacy.py"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_foreign_text_is_logged_and_shown_through_one_function(path: Path) -> None:
    name = path.relative_to(ROOT).as_posix()
    if name not in LOGGERS and not name.startswith("workers/child/"):
        assert "logging.getLogger(" not in path.read_text(), "use standfast.base.log.get_logger"
    if name != "cli/commands/_output.py":
        assert "rich.markup.escape" not in imports_of(path), "use escape of standfast.cli.commands._output"


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_standfast_imports_nothing_heavy() -> None:
    heavy = run_python(
        "import sys, standfast; "
        "heavy = 'openai sqlalchemy redis pydantic cryptography opentelemetry asyncio mcp'.split(); "
        "print([name for name in heavy if name in sys.modules])"
    )
    assert heavy == "[]"


def test_a_store_in_sqlite_needs_no_extra() -> None:
    loaded = run_python(
        "import sys; from standfast import open_store, SQLiteSession; "
        "print([m for m in ('openai', 'sqlalchemy', 'redis', 'cryptography') if m in sys.modules])"
    )
    assert loaded == "[]"


def test_importing_standfast_imports_few_modules() -> None:
    loaded = run_python("import sys; before = len(sys.modules); import standfast; print(len(sys.modules) - before)")
    assert int(loaded) < 60


def test_the_names_of_test_files_are_unique():
    """The folders of the tests are no packages, so that pytest imports every file as a module of the top level."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
