"""Public names are listed once, in the stub beside each package, and resolved on first use."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

import pytest

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


def test_a_type_checker_knows_the_types_of_a_session(reports: dict[str, list[str]]) -> None:
    report = "\n".join(reports["session"])
    assert 'Revealed type is "standfast.store.records.Head"' in report
    assert report.count("[arg-type]") == 2, report


def test_the_rules_of_a_function_model_can_be_typed(reports: dict[str, list[str]]) -> None:
    assert reports["model"] == []


def test_a_type_checker_knows_the_module_paths_of_openai_agents(reports: dict[str, list[str]]) -> None:
    revealed, *wrong = reports["moved"]
    assert 'Revealed type is "standfast.agents.tools.FunctionTool"' in revealed
    assert len(wrong) == 2
    assert all("[arg-type]" in line for line in wrong)


def test_no_public_name_has_the_type_any(reports: dict[str, list[str]]) -> None:
    names = list_values()
    assert len(reports["names"]) == len(names), "\n".join(reports["names"])
    pairs = zip(names, reports["names"], strict=True)
    assert [name for name, line in pairs if line.endswith('Revealed type is "Any"')] == []
