"""Public names are resolved on first use; stubs beside the packages tell type checkers what they are.

``python tests/test_public_names.py`` writes the stubs anew.
"""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
PACKAGES = [
    "holdfast",
    "holdfast.agents",
    "holdfast.history",
    "holdfast.mcp",
    "holdfast.models",
    "holdfast.realtime",
    "holdfast.realtime.local",
    "holdfast.runs",
    "holdfast.tracing",
]


def stub_of(package: str) -> str:
    homes = importlib.import_module(package)._HOMES
    lines = [
        f"from {package}.{home} import {name} as {name}"
        for home, names in sorted(homes.items())
        for name in sorted(names)
    ]
    extra = ["", "__version__: str"] if package == "holdfast" else []
    return "\n".join([*lines, *extra, ""])


def path_of(package: str) -> Path:
    return SRC / Path(*package.split(".")) / "__init__.pyi"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_stub_of_a_package_names_what_it_offers(package: str) -> None:
    assert path_of(package).read_text() == stub_of(package), "run: python tests/test_public_names.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_a_type_checker_knows_the_public_names(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import holdfast\n"
        "async def main() -> None:\n"
        "    async with holdfast.open_store('memory://') as store:\n"
        "        session = store.session('s')\n"
        "        reveal_type(await session.head())\n"
        "        await session.add_items('not a list', key=7)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MYPYPATH": str(SRC), "PATH": "/usr/bin:/bin"},
    )
    assert 'Revealed type is "holdfast.store.contract.Head"' in done.stdout, done.stdout
    assert done.stdout.count("[arg-type]") == 2, done.stdout


if __name__ == "__main__":
    sys.path.insert(0, str(SRC))
    for name in PACKAGES:
        path_of(name).write_text(stub_of(name))
