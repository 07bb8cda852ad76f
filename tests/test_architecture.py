"""The layer law: imports go down only, siblings do not know each other, and heavy libraries stay in their rooms."""

import ast
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
    "models": 3,
    "mcp": 3,
    "history": 3,
    "toolcalls": 3,
    "runs": 4,
    "realtime": 5,
    "runtime": 5,
    "cli": 6,
    "testing": 7,
}

# Which parts may import a heavy library; nobody else may, not even inside a function.
ROOMS = {
    "openai": {"models", "history", "realtime"},
    "sqlalchemy": {"store", "history"},
    "redis": {"store", "history"},
    "cryptography": {"history"},
    "cloudpickle": {"workers"},
    "typer": {"cli"},
    "rich": {"cli"},
    "websockets": {"realtime"},
    "mcp": {"mcp"},
    "httpx2": {"mcp"},
    "anyio": {"mcp"},
    "opentelemetry": {"tracing"},
}


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
    home = parts[0]
    assert home in LEVELS, f"{home} has no level yet: give it one here and in docs/architecture.md"
    for name in imports_of(path):
        if not name.startswith("standfast."):
            continue
        other = name.split(".")[1]
        if other in LEVELS and other != home:
            assert LEVELS[other] < LEVELS[home], f"{home} (level {LEVELS[home]}) imports {name} (level {LEVELS[other]})"


def test_a_realtime_session_knows_no_wire() -> None:
    wire = ("standfast.realtime.openai", "standfast.realtime.local")
    parts = [path for path in (ROOT / "realtime").glob("*.py") if path.name != "runner.py"]  # It has the default model.
    assert [(path.name, name) for path in parts for name in imports_of(path) if name.startswith(wire)] == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_heavy_libraries_stay_in_their_rooms(path: Path) -> None:
    home = path.relative_to(ROOT).parts[0]
    for name in imports_of(path):
        library = name.split(".")[0]
        if library in ROOMS and home != "testing":
            assert home in ROOMS[library], f"{path.name} imports {library}"


def test_the_child_of_a_worker_imports_only_its_own_words() -> None:
    for path in sorted((ROOT / "workers" / "child").rglob("*.py")):
        for name in imports_of(path):
            if name.startswith("standfast"):
                assert name.startswith(("standfast.workers.wire", "standfast.workers.child")), f"{path.name}: {name}"


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


def test_importing_standfast_takes_less_than_a_fifth_of_a_second() -> None:
    times = [
        float(run_python("import time; t = time.perf_counter(); import standfast; print(time.perf_counter() - t)"))
        for _ in range(3)
    ]
    assert min(times) < 0.2
