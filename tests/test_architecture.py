"""Imports go down only, private subpackages stay private, and few packages import each heavy library."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

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
    "fleet": 7,
    "server": 7,
    "client": 8,
    "cli": 9,
    "testing": 10,
}

# The packages that may import a heavy library; no other may, not even inside a function.
LIBRARY_USERS = {
    "openai": {"models", "history", "realtime", "voice"},
    "sqlalchemy": {"store", "history"},
    "redis": {"store", "history"},
    "pymongo": {"history"},
    "dapr": {"history"},
    "grpc": {"history"},
    "cryptography": {"history"},
    "cloudpickle": {"workers"},
    "obstore": {"store"},
    "typer": {"cli"},
    "rich": {"cli"},
    "websockets": {"models", "realtime", "voice"},
    "mcp": {"mcp"},
    "httpx2": {"mcp", "client", "runtime"},
    "anyio": {"mcp"},
    "starlette": {"server"},
    "uvicorn": {"server"},
    "prometheus_client": {"server"},
    "jwt": {"server"},
    "opentelemetry": {"tracing"},
    "jsonschema": {"tool_calls"},
    "graphviz": {"agents"},
    "cronsim": {"runtime"},
    "litellm": {"models"},
    "ray": {"fleet"},
    "any_llm": {"models"},
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


def get_package(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def get_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_each_package_has_a_level() -> None:
    packages = {get_package(path) for path in MODULES if path.parent != ROOT}
    assert packages == set(LEVELS), "give each package a level here and in docs/architecture.md"


def test_imports_go_down_only() -> None:
    upwards = [
        f"{get_name(path)} imports {name}"
        for path in MODULES
        if path.parent != ROOT
        for name in imports_of(path)
        if name.startswith("standfast.") and (other := name.split(".")[1]) in LEVELS
        if other != get_package(path) and LEVELS[other] >= LEVELS[get_package(path)]
    ]
    assert upwards == []


def test_a_realtime_session_does_not_import_a_transport() -> None:
    transports = ("standfast.realtime.openai", "standfast.realtime.local")
    realtime = ROOT / "realtime"
    modules = [*realtime.glob("*.py"), *(realtime / "_session").glob("*.py")]
    modules.remove(realtime / "runner.py")  # It names the default model.
    assert [(path.name, name) for path in modules for name in imports_of(path) if name.startswith(transports)] == []


def test_a_private_subpackage_is_imported_only_by_the_package_around_it() -> None:
    strangers = []
    for path in MODULES:
        module = ".".join(("standfast", *path.relative_to(ROOT).with_suffix("").parts))
        for name in imports_of(path):
            owner, private, _ = name.partition("._")
            if private and owner.startswith("standfast.") and not name.startswith("standfast.cli"):
                strangers += [f"{module} imports {name}"] * (not module.startswith(f"{owner}."))
    assert strangers == []


def test_heavy_libraries_are_imported_only_by_the_packages_that_wrap_them() -> None:
    others = [
        f"{get_name(path)} imports {name}"
        for path in MODULES
        if get_package(path) != "testing"
        for name in imports_of(path)
        if get_package(path) not in LIBRARY_USERS.get(name.split(".")[0], {get_package(path)})
    ]
    assert others == []


def test_a_worker_process_imports_only_the_wire_format() -> None:
    for path in sorted((ROOT / "workers" / "child").rglob("*.py")):
        for name in imports_of(path):
            if name.startswith("standfast"):
                assert name.startswith(("standfast.workers.wire", "standfast.workers.child")), f"{path.name}: {name}"


def test_only_worker_processes_can_load_pickles() -> None:
    """``marshal`` and ``shelve`` run code from data, too, and a pool of processes loads what its processes pickle."""
    loaders = {
        "pickle",
        "cloudpickle",
        "marshal",
        "shelve",
        "multiprocessing",
        "concurrent.futures.ProcessPoolExecutor",
    }
    users = {get_name(path) for path in MODULES if imports_of(path) & loaders}
    assert users
    assert {name for name in users if not name.startswith("workers/child/")} == set()
    modules = {"standfast." + name.removesuffix(".py").replace("/", ".") for name in users}
    host = [path for path in MODULES if not get_name(path).startswith("workers/child/")]
    assert [get_name(path) for path in host if imports_of(path) & modules] == []


LOGGERS = {"base/log.py", "server/logs.py", "cli/app.py", "mcp/_client/log_privacy.py"}


def test_foreign_text_is_logged_and_shown_through_one_function() -> None:
    for path in MODULES:
        name = get_name(path)
        if name not in LOGGERS and not name.startswith("workers/child/"):
            assert "logging.getLogger(" not in path.read_text(), f"{name}: use standfast.base.log.get_logger"
        if name != "cli/commands/_output.py":
            assert "rich.markup.escape" not in imports_of(path), f"{name}: use escape of cli.commands._output"


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


def test_a_runner_and_a_runtime_import_no_library_that_validates_declarations() -> None:
    """pydantic is imported by the first function tool."""
    assert (
        run_python("import sys; from standfast import Agent, Runner, Runtime; print('pydantic' in sys.modules)")
        == "False"
    )


def test_importing_standfast_imports_few_modules() -> None:
    loaded = run_python("import sys; before = len(sys.modules); import standfast; print(len(sys.modules) - before)")
    assert int(loaded) < 60


def test_the_names_of_test_files_are_unique():
    """The folders of the tests are no packages, so that pytest imports every file as a module of the top level."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_names_of_classes_are_unique() -> None:
    """A class has one meaning in the whole tree; private ones may share a name."""
    homes: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}
