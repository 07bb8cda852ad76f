"""Public names are listed once, in the stub beside each package, and resolved on first use."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

import pytest

SRC = Path(__file__).parent.parent / "src"
PACKAGES = sorted(".".join(file.parent.relative_to(SRC).parts) for file in SRC.rglob("__init__.pyi"))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


def checked(tmp_path: Path, program: str) -> str:
    """What mypy says about a program that uses standfast."""
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", file],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(SRC), "PATH": "/usr/bin:/bin"},
    )
    return done.stdout


def test_a_type_checker_knows_the_public_names(tmp_path: Path) -> None:
    told = checked(
        tmp_path,
        "import standfast\n"
        "async def main() -> None:\n"
        "    async with standfast.open_store('memory://') as store:\n"
        "        session = store.session('s')\n"
        "        reveal_type(await session.head())\n"
        "        await session.add_items('not a list', key=7)\n",
    )
    assert 'Revealed type is "standfast.store.contract.Head"' in told
    assert told.count("[arg-type]") == 2, told


def test_the_rules_of_a_function_model_can_be_typed(tmp_path: Path) -> None:
    told = checked(
        tmp_path,
        "from typing import Any\n"
        "from standfast import FunctionModel, FunctionRequest\n"
        "def rules(request: FunctionRequest) -> str | dict[str, Any]:\n"
        "    if request.input[-1].get('type') == 'function_call_output':\n"
        "        return str(request.input[-1]['output'])\n"
        "    return FunctionModel.call('find', order='7')\n"
        "model = FunctionModel(rules)\n",
    )
    assert told.startswith("Success"), told


def test_no_public_name_is_anything_to_a_type_checker(tmp_path: Path) -> None:
    names = [
        f"{package}.{name}"
        for package in PACKAGES
        for name in importlib.import_module(package).__all__
        if not isinstance(value := getattr(importlib.import_module(package), name), TypeVar) and value is not Any
    ]
    imports = [f"import {package}" for package in PACKAGES]
    told = checked(tmp_path, "\n".join([*imports, *(f"reveal_type({name})" for name in names)]))
    lines = told.splitlines()
    unknown = [name for name, line in zip(names, lines, strict=False) if line.endswith('Revealed type is "Any"')]
    assert len(lines) == len(names) + 1, told
    assert unknown == []
