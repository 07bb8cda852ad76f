"""``standfast migrate`` rewrites imports, keeps everything else, and lists what is left."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from commands import CommandProcess

MigrateText: TypeAlias = Callable[[str], tuple[str, list[str]]]

PROGRAM = """\
# A comment — with agents in it.
from agents import Agent, Runner  # keep me
from agents.extensions.memory import (
    SQLAlchemySession,   # and my spaces
)
import agents.tracing as tracing
import os, agents
from   agents . run import RunConfig

def main(agent: "Agent") -> None:
    text = "from agents import nothing"; print("é", agents.Agent, text)
    agents.extensions.memory
"""

MIGRATED = """\
# A comment — with agents in it.
from standfast import Agent, Runner  # keep me
from standfast.extensions.memory import (
    SQLAlchemySession,   # and my spaces
)
import standfast.tracing as tracing
import os, standfast
from   standfast . run import RunConfig

def main(agent: "Agent") -> None:
    text = "from agents import nothing"; print("é", standfast.Agent, text)
    standfast.extensions.memory
"""


@pytest.fixture
def migrate(command_process: CommandProcess, tmp_path: Path) -> Callable[..., str]:
    """Run ``standfast migrate`` on a path and return its output."""

    def run(path: Path, *options: str) -> str:
        words = ("-m", "standfast", "migrate", str(path), *options)
        done = command_process.run(*words, directory=tmp_path, environment=os.environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def migrate_text(migrate: Callable[..., str], tmp_path: Path) -> MigrateText:
    """Migrate a text as a program; return it after the migration, and the problems that are left."""

    def run(text: str) -> tuple[str, list[str]]:
        file = tmp_path / "program.py"
        file.write_bytes(text.encode())
        report = json.loads(migrate(file, "--write", "--json"))
        return file.read_bytes().decode(), [each["problem"] for each in report["left"]]

    return run


def test_only_the_first_word_of_imports_and_its_uses_change(migrate_text: MigrateText) -> None:
    assert migrate_text(PROGRAM) == (MIGRATED, [])
    windows = PROGRAM.replace("\n", "\r\n")
    assert migrate_text(windows) == (MIGRATED.replace("\n", "\r\n"), [])


def test_without_write_the_changes_are_shown_and_nothing_is_written(
    migrate: Callable[..., str], tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "program.py"
    file.write_text(PROGRAM)
    shown = migrate(tmp_path)
    assert "-from agents import Agent, Runner  # keep me" in shown
    assert "+from standfast import Agent, Runner  # keep me" in shown
    assert "1 files to change" in shown
    assert file.read_text() == PROGRAM


def test_a_name_that_means_something_else_keeps_its_meaning(migrate_text: MigrateText) -> None:
    text = "import agents\n\ndef count(agents):\n    return len(agents)\n\nprint(agents.Agent)\n"
    assert migrate_text(text) == (text.replace("import agents", "import standfast as agents"), [])


def test_what_standfast_lacks_is_listed(migrate_text: MigrateText) -> None:
    text = "from agents import Agent, nothing_like_it\nimport agents.nowhere\nname = 'agents.run'\n"
    _, left = migrate_text(text)
    assert left == [
        "standfast has no standfast.nothing_like_it",
        "standfast has no module standfast.nowhere",
        "the text 'agents.run' may be a module path",
    ]


def test_a_module_of_the_program_itself_is_left_alone(migrate_text: MigrateText, tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    text = "from agents import mine\n"
    after, left = migrate_text(text)
    assert after == text
    assert "module of this program" in left[0]


def test_a_module_inside_a_package_does_not_hide_openai_agents(migrate_text: MigrateText, tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "__init__.py").touch()
    after, left = migrate_text("from agents import Runner\n\nfrom .agents import writer\n")
    assert after == "from standfast import Runner\n\nfrom .agents import writer\n"
    assert left == []


def test_dependencies_are_listed(migrate: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("httpx\nopenai-agents[redis]==0.24.0\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "program.py").write_text("from agents import Agent\n")
    report = json.loads(migrate(tmp_path, "--json"))
    assert report["files"] == []
    assert [(Path(each["file"]).name, each["line"]) for each in report["left"]] == [("requirements.txt", 2)]


def test_a_file_that_is_no_python_is_reported(migrate_text: MigrateText) -> None:
    text = "from agents import (\n"
    assert migrate_text(text) == (text, ["it cannot be parsed"])
