"""Public names are listed once, in the stub beside each package, and resolved on first use."""

import ast
import importlib
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, TypeVar

import pytest

from standfast import Agent, Approval, Event, ModelSettings, RunConfig, RunContextWrapper, RunInfo, RunOutcome, Usage
from standfast.agents import Handoff, InputGuardrail, MCPConfig, OutputGuardrail
from standfast.agents.agent import AgentBase
from standfast.agents.model_settings import ModelRetryBackoffSettings, ModelRetrySettings
from standfast.base.usage import RequestUsage
from standfast.fleet import NodeStatus
from standfast.history import CorruptItem, IntegrityReport, SearchHit, StoredSessionInfo
from standfast.history.deletion import DeletedSession
from standfast.mcp import MCPServerSseParams, MCPServerStdioParams, MCPServerStreamableHttpParams
from standfast.models import ModelResponse
from standfast.runs.config import RunOptions
from standfast.runtime.types import RunProblem, RunStep, RuntimeInfo, StepCall, StepItem
from standfast.server import ApiKey, AuditEntry, Principal
from standfast.workers import ExecutionResult, PoolConfig, SandboxPolicy, SessionConfig, SessionInfo
from standfast.workspaces.view import StoredFile, VersionInfo

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src"
PACKAGES = sorted(".".join(file.parent.relative_to(SRC).parts) for file in (SRC / "standfast").rglob("__init__.pyi"))

SESSION_PROGRAM = """\
import standfast

async def main() -> None:
    async with standfast.open_store("memory://") as store:
        session = store.session("s")
        reveal_type(await session.head())
        await session.add_items("not a list", key=7)
"""

MODEL_PROGRAM = """\
from typing import Any

from standfast import FunctionModel, FunctionRequest

def rules(request: FunctionRequest) -> str | dict[str, Any]:
    if request.input[-1].get("type") == "function_call_output":
        return str(request.input[-1]["output"])
    return FunctionModel.call("find", order="7")

model = FunctionModel(rules)
"""

MOVED_PROGRAM = """\
from standfast import Agent, Runner
from standfast.decorators import tool
from standfast.extensions.memory import SQLAlchemySession
from standfast.lifecycle import RunHooks, RunHooksBase
from standfast.models.interface import Model
from standfast.models.openai_responses import OpenAIResponsesModel
from standfast.run_context import RunContextWrapper

@tool
def weather(city: str) -> str:
    return city

class Hooks(RunHooksBase[str, Agent[str]]):
    async def on_agent_start(self, context: RunContextWrapper[str], agent: Agent[str]) -> None:
        agent.name.casefold()

async def main(session: SQLAlchemySession) -> None:
    reveal_type(weather)
    await Runner.run(Agent[str](name="a", tools=[weather]), "x", hooks=Hooks(), session=session)
    OpenAIResponsesModel(model=1, openai_client=None)
"""


def list_values() -> list[str]:
    """The public names that have a type of their own."""
    return [
        f"{package}.{name}"
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
        if not isinstance(value := getattr(importlib.import_module(package), name), TypeVar) and value is not Any
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What mypy reports about each program; one run for all, with the cache of ``make check``."""
    folder = tmp_path_factory.mktemp("typed")
    imports = [f"import {package}" for package in PACKAGES]
    programs = {
        "session": SESSION_PROGRAM,
        "model": MODEL_PROGRAM,
        "moved": MOVED_PROGRAM,
        "names": "\n".join([*imports, *(f"reveal_type({name})" for name in list_values())]),
    }
    files = [folder / f"{name}_program.py" for name in programs]
    for file, program in zip(files, programs.values(), strict=True):
        file.write_text(program)
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    return {name: [line for line in lines if f"{name}_program.py:" in line] for name in programs}


@pytest.mark.types
def test_a_type_checker_knows_the_types_of_a_session(reports: dict[str, list[str]]) -> None:
    report = "\n".join(reports["session"])
    assert 'Revealed type is "standfast.store.records.Head"' in report
    assert report.count("[arg-type]") == 2, report


@pytest.mark.types
def test_the_rules_of_a_function_model_can_be_typed(reports: dict[str, list[str]]) -> None:
    assert reports["model"] == []


@pytest.mark.types
def test_a_type_checker_knows_the_module_paths_of_openai_agents(reports: dict[str, list[str]]) -> None:
    revealed, *wrong = reports["moved"]
    assert 'Revealed type is "standfast.agents.tools.FunctionTool"' in revealed
    assert len(wrong) == 2
    assert all("[arg-type]" in line for line in wrong)


@pytest.mark.types
def test_no_public_name_has_the_type_any(reports: dict[str, list[str]]) -> None:
    names = list_values()
    assert len(reports["names"]) == len(names), "\n".join(reports["names"])
    pairs = zip(names, reports["names"], strict=True)
    assert [name for name, line in pairs if line.endswith('Revealed type is "Any"')] == []


def list_undocumented(value: Any, name: str) -> list[str]:
    """The class or function and its public members that have no docstring of their own or of a base class."""
    if not getattr(value, "__module__", "").startswith("standfast"):
        return []
    text = value.__doc__ or ""
    missing = [] if text.strip() and not text.startswith(f"{value.__name__}(") else [name]
    if inspect.isclass(value):
        members = {
            key: one
            for base in reversed(value.__mro__)
            if base.__module__.startswith("standfast")
            for key, one in vars(base).items()
        }
        own = [
            key
            for key, one in members.items()
            if not key.startswith(("_", "test_")) and (callable(one) or is_property(one))
        ]
        missing += [f"{name}.{key}" for key in own if not inspect.getdoc(inspect.getattr_static(value, key))]
    return missing


def is_property(value: Any) -> bool:
    return isinstance(value, property | classmethod | staticmethod)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_class_and_function_has_a_docstring(package: str) -> None:
    module = importlib.import_module(package)
    values = {name: getattr(module, name) for name in module.__all__}
    checked = {name: one for name, one in values.items() if inspect.isclass(one) or inspect.isfunction(one)}
    assert [each for name, one in checked.items() for each in list_undocumented(one, name)] == []


FIELDS = (
    Agent, AgentBase, Handoff, InputGuardrail, MCPConfig, MCPServerSseParams, MCPServerStdioParams,
    MCPServerStreamableHttpParams, ModelRetryBackoffSettings, ModelRetrySettings, ModelSettings, OutputGuardrail,
    PoolConfig, RunConfig, RunContextWrapper, RunOptions, SandboxPolicy, SessionConfig,
)  # fmt: skip
RECORDS = (
    Approval, ApiKey, AuditEntry, CorruptItem, DeletedSession, Event, ExecutionResult, IntegrityReport, ModelResponse,
    NodeStatus, Principal, RequestUsage, RunInfo, RunOutcome, RunProblem, RunStep, RuntimeInfo, SearchHit, SessionInfo,
    StepCall, StepItem, StoredFile, StoredSessionInfo, Usage, VersionInfo,
)  # fmt: skip


@pytest.mark.parametrize("documented", [*FIELDS, *RECORDS], ids=lambda one: one.__name__)
def test_every_field_of_the_settings_and_records_is_explained(documented: type) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(documented))).body[0]
    assert isinstance(tree, ast.ClassDef)
    followed = zip(tree.body, [*tree.body[1:], None], strict=True)
    assert [
        ast.unparse(one.target)
        for one, text in followed
        if isinstance(one, ast.AnnAssign) and not (isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant))
    ] == []
