"""``standfast migrate`` rewrites imports, keeps everything else, and lists what is left."""

import json
import subprocess
import sys
from pathlib import Path

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


def migrate(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "standfast", "migrate", str(path), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True)


def migrate_text(folder: Path, text: str) -> tuple[str, list[str]]:
    """Return the program after the migration, and the problems that are left."""
    file = folder / "program.py"
    file.write_bytes(text.encode())
    report = json.loads(migrate(file, "--write", "--json").stdout)
    return file.read_bytes().decode(), [each["problem"] for each in report["left"]]


def test_only_the_first_word_of_imports_and_its_uses_change(tmp_path: Path) -> None:
    assert migrate_text(tmp_path, PROGRAM) == (MIGRATED, [])
    windows = PROGRAM.replace("\n", "\r\n")
    assert migrate_text(tmp_path, windows) == (MIGRATED.replace("\n", "\r\n"), [])


def test_without_write_the_changes_are_shown_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    file = tmp_path / "src" / "program.py"
    file.write_text(PROGRAM)
    shown = migrate(tmp_path).stdout
    assert "-from agents import Agent, Runner  # keep me" in shown
    assert "+from standfast import Agent, Runner  # keep me" in shown
    assert "1 files to change" in shown
    assert file.read_text() == PROGRAM


def test_a_name_that_means_something_else_keeps_its_meaning(tmp_path: Path) -> None:
    text = "import agents\n\ndef count(agents):\n    return len(agents)\n\nprint(agents.Agent)\n"
    assert migrate_text(tmp_path, text) == (text.replace("import agents", "import standfast as agents"), [])


def test_what_standfast_lacks_is_listed(tmp_path: Path) -> None:
    text = "from agents import Agent, nothing_like_it\nimport agents.nowhere\nname = 'agents.run'\n"
    _, left = migrate_text(tmp_path, text)
    assert left == [
        "standfast has no standfast.nothing_like_it",
        "standfast has no module standfast.nowhere",
        "the text 'agents.run' may be a module path",
    ]


def test_a_module_of_the_program_itself_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    text = "from agents import mine\n"
    after, left = migrate_text(tmp_path, text)
    assert after == text
    assert "module of this program" in left[0]


def test_dependencies_are_listed(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("httpx\nopenai-agents[redis]==0.24.0\n")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "program.py").write_text("from agents import Agent\n")
    report = json.loads(migrate(tmp_path, "--json").stdout)
    assert report["files"] == []
    assert [(Path(each["file"]).name, each["line"]) for each in report["left"]] == [("requirements.txt", 2)]


def test_a_file_that_is_no_python_is_reported(tmp_path: Path) -> None:
    text = "from agents import (\n"
    assert migrate_text(tmp_path, text) == (text, ["it cannot be parsed"])
