"""Installing standfast: the wheel and the sdist, an old interpreter, and use without optional dependencies."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from deploy.check_release import find_problems

ROOT = Path(__file__).parent.parent
CORE = ("annotated_types", "attr", "attrs", "jsonschema", "jsonschema_specifications", "msgspec", "pydantic")
CORE += ("pydantic_core", "referencing", "rpds", "typing_extensions.py", "typing_inspection")

BARE_PROGRAM = """
import pydoc
import standfast, standfast.client, standfast.server
from standfast import *

print(standfast.__file__)
print(Runtime.__name__, open_store.__name__, "RedisSession" in globals())
print([hasattr(standfast, name) for name in ("Runtime", "RedisSession", "AsyncOpenAI", "Nonsense")])
print([len(pydoc.render_doc(module)) > 1000 for module in (standfast, standfast.client, standfast.server)])
for line in (
    "from standfast import RedisSession",
    "standfast.RedisSession",
    "from standfast import AsyncOpenAI",
    "from standfast.server import create_app",
    "from standfast.mcp import MCPServerSse",
    "from standfast import Nonsense",
):
    try:
        exec(line)
    except (ImportError, AttributeError) as error:
        print(type(error).__name__, error)
"""


def run(*command: str | Path, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def list_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory with the built wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--directory", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def bare(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the wheel and what it requires, and without any extra."""
    folder = tmp_path_factory.mktemp("bare")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    install = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    run(*install, "--no-index", "--no-deps", "--no-compile", wheel)
    packages = folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    for name in CORE:  # links in place of the registry, which a test must not need
        found = Path(sysconfig.get_path("purelib"), name)
        if found.exists():
            (packages / name).symlink_to(found)
    return python


def test_the_installed_wheel_works_without_optional_dependencies(bare: Path, tmp_path: Path) -> None:
    where, star, present, helped, *errors = run(bare, "-c", BARE_PROGRAM, cwd=tmp_path).stdout.splitlines()
    assert Path(where).is_relative_to(bare.parent.parent)
    assert star == "Runtime open_store False"
    assert present == "[True, False, False, False]"
    assert helped == "[True, True, True]"
    assert errors[:5] == [
        "MissingExtra RedisSession needs the extra 'redis': pip install 'standfast[redis]'",
        "AttributeError standfast.history.RedisSession: "
        "RedisSession needs the extra 'redis': pip install 'standfast[redis]'",
        "MissingExtra standfast.AsyncOpenAI needs the extra 'openai': pip install 'standfast[openai]'",
        "MissingExtra standfast.server.create_app needs the extra 'server': pip install 'standfast[server]'",
        "MissingExtra standfast.mcp.MCPServerSse needs the extra 'mcp': pip install 'standfast[mcp]'",
    ]
    assert errors[5].startswith("ImportError cannot import name 'Nonsense' from 'standfast'")


def test_the_command_says_what_it_needs(bare: Path, tmp_path: Path) -> None:
    done = run(bare.with_name("standfast"), "doctor", cwd=tmp_path, check=False)
    assert done.returncode != 0
    assert "pip install 'standfast[cli]'" in done.stderr


def test_the_wheel_has_the_whole_package_and_the_sdist_gives_the_same(dist: Path, tmp_path: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    tracked = run("git", "ls-files", "src", cwd=ROOT, check=False).stdout.split()
    assert {path.removeprefix("src/") for path in tracked} <= list_files(wheel)
    shutil.unpack_archive(sdist, tmp_path)
    (unpacked,) = tmp_path.iterdir()
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "--directory", tmp_path / "again", cwd=unpacked)
    (again,) = (tmp_path / "again").glob("*.whl")
    assert list_files(again) == list_files(wheel)


@pytest.mark.parametrize("target", ["demo", "test"])
def test_an_old_interpreter_is_refused_before_anything_is_installed(target: str, tmp_path: Path) -> None:
    old = tmp_path / "python3.10"
    old.write_text(
        f"#!{sys.executable}\nimport sys\nsys.version_info = (3, 10, 4, 'final', 0)\nassert sys.argv[1] == '-c'\n"
        "exec(sys.argv[2])\n"
    )
    old.chmod(0o755)
    for name in ("pyproject.toml", "requirements-dev.txt", "requirements-weights.txt"):
        (tmp_path / name).touch()
    done = run("make", "-f", ROOT / "Makefile", target, f"PYTHON={old}", cwd=tmp_path, check=False)
    assert done.returncode != 0
    assert f"standfast needs Python 3.11 or newer, and {old} is 3.10. Name another one: make PYTHON=python3.12" in (
        done.stderr
    )
    assert not (tmp_path / ".venv").exists()


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    done = run("make", "-f", ROOT / "Makefile", "demo", "PYTHON=python4.7", cwd=tmp_path, check=False)
    assert "There is no python4.7 here. Install Python 3.11 or newer" in done.stderr


def test_versions_and_changelog_agree(tmp_path: Path) -> None:
    assert find_problems(ROOT) == []
    (tmp_path / "src" / "standfast").mkdir(parents=True)
    (tmp_path / "src" / "standfast" / "__init__.py").write_text('__version__ = "1.0.0"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.1.0"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.0.0 (2026-01-01)\n\n- A change.\n")
    assert len(find_problems(tmp_path)) == 2
