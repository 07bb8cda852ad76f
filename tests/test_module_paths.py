"""A program moves from openai-agents by replacing the first word of its imports, whichever module they name."""

import importlib
import subprocess
import sys

import pytest
from compat.stubs import STUBS, make_stubs

import standfast
from standfast.base.lazy import ModulePathFinder

PATHS = sorted(ModulePathFinder.read_paths())


@pytest.mark.parametrize("path", PATHS)
def test_every_name_of_a_module_path_can_be_imported(path: str) -> None:
    module = importlib.import_module(f"standfast.{path}")
    assert module.__name__ == f"standfast.{path}"
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_the_stubs_are_those_of_the_table() -> None:
    found = {str(file.relative_to(STUBS)): file.read_text() for file in STUBS.rglob("*") if file.is_file()}
    assert found == make_stubs(), "run python -m compat.stubs"


def test_a_name_is_the_same_object_under_every_path() -> None:
    from standfast.agent import Agent
    from standfast.decorators import tool
    from standfast.extensions.memory.sqlalchemy_session import SQLAlchemySession
    from standfast.run import Runner

    assert Agent is standfast.Agent
    assert tool is standfast.function_tool
    assert SQLAlchemySession is standfast.SQLAlchemySession
    assert Runner is standfast.Runner


def test_a_submodule_is_an_attribute_of_its_package() -> None:
    filters = importlib.import_module("standfast.extensions.handoff_filters")
    assert filters is standfast.extensions.handoff_filters  # type: ignore[attr-defined]
    assert standfast.handoff_filters.remove_all_tools is filters.remove_all_tools  # type: ignore[attr-defined]


def test_a_module_does_not_hide_a_public_function_of_the_same_name() -> None:
    importlib.import_module("standfast.handoffs")
    assert callable(standfast.handoff)
    from standfast.function_schema import function_schema

    assert callable(function_schema)


def test_an_unknown_path_or_name_is_refused_as_usual() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"standfast\.extensions\.nothing"):
        importlib.import_module("standfast.extensions.nothing")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        standfast.nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="nothing"):
        exec("from standfast.agent import nothing")


def test_a_module_path_imports_nothing_heavy() -> None:
    program = (
        "import sys, standfast.extensions.memory, standfast.models.openai_responses, standfast.run; "
        "print([name for name in ('openai', 'sqlalchemy', 'redis', 'pydantic', 'asyncio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
