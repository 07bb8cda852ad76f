"""Competitors: libraries installed from PyPI into separate environments and measured in long-running processes.

A long-running process can take turns with ours, round by round, and its start is not part of any figure.
"""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.progress import show_progress

ROOT = Path(__file__).parent.parent


class CompetitorUnavailable(Exception):
    """A competitor could not be installed, started or measured. Only the comparisons with it are left out."""


@dataclass(frozen=True)
class Environment:
    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return ROOT / ".venv-peers" / self.name


AGENTS = Environment("agents", ("openai-agents>=0.22", "pydantic-ai-slim", "langgraph", "langgraph-checkpoint-sqlite"))
JUPYTER = Environment("jupyter", ("jupyter_client", "ipykernel"))


def prepare_environment(environment: Environment = AGENTS) -> str:
    """Return the interpreter of an environment, which is created on first use and when its packages change."""
    python, marker = environment.folder / "bin" / "python", environment.folder / "ready"
    packages = "\n".join(environment.packages)
    if not marker.exists() or marker.read_text() != packages:
        show_progress(f"installing {', '.join(environment.packages)}")
        try:
            run_command(sys.executable, "-m", "venv", str(environment.folder))
            run_command(str(python), "-m", "pip", "install", "-q", *environment.packages)
        except subprocess.CalledProcessError as error:
            last_line = (error.stderr or "").strip().splitlines()[-1:]
            raise CompetitorUnavailable(
                f"cannot install {', '.join(environment.packages)}: {' '.join(last_line)}"
            ) from None
        marker.write_text(packages)
    return str(python)


def run_command(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True)


def get_versions(environment: Environment) -> dict[str, str]:
    """Return the version of every package in an environment; empty if it does not exist."""
    paths = [str(path) for path in environment.folder.glob("lib/python*/site-packages")]
    return {package.name: package.version for package in metadata.distributions(path=paths)} if paths else {}


class Competitor:
    """A process that measures on request: one line of JSON for the request, one for the result."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name = name
        self._process = process

    @classmethod
    @contextmanager
    def start(cls, name: str, python: str, module: str, *arguments: str) -> Iterator["Competitor"]:
        command = [python, "-W", "ignore", "-m", module, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None
            try:
                yield cls(name, process)
            finally:
                try:
                    process.stdin.close()
                    process.wait(20)
                except (BrokenPipeError, subprocess.TimeoutExpired):
                    process.kill()

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Return the result of an operation; ``None`` if the library does not support it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"operation": operation, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise CompetitorUnavailable(
                f"{self.name} ended with code {self._process.wait()} when asked for {operation}"
            )
        response = json.loads(line)
        if "error" in response:
            raise CompetitorUnavailable(f"{self.name} failed at {operation}: {response['error']}")
        return response["result"]


@contextmanager
def start_competitors(commands: Mapping[str, tuple[Environment, Iterable[str]]]) -> Iterator[dict[str, Competitor]]:
    """Start the competitors that are available; ``commands`` has an environment and the module arguments of each."""
    with ExitStack() as stack:
        running: dict[str, Competitor] = {}
        for name, (environment, arguments) in commands.items():
            try:
                python = prepare_environment(environment)
                competitor = stack.enter_context(Competitor.start(name, python, *arguments))
                competitor.ask("ready")
                running[name] = competitor
            except CompetitorUnavailable as error:
                show_progress(f"without {name}: {error}")
        yield running


Command = tuple[Environment | None, Sequence[str]]


def measure_best(commands: Mapping[str, Command], rounds: int) -> dict[str, dict[str, float]]:
    """Return the minimum of each figure that modules print as JSON, each in a new process; they take turns.

    A module without an environment is ours and must not fail; a competitor that fails is left out.
    """
    results: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for name, (environment, arguments) in commands.items():
            show_progress(f"{arguments[0]}, round {number + 1} of {rounds}, {name}")
            try:
                python = sys.executable if environment is None else prepare_environment(environment)
                command = [python, "-W", "ignore", "-m", *arguments]
                process = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            except (CompetitorUnavailable, subprocess.CalledProcessError) as error:
                if environment is None:
                    raise
                show_progress(f"without {name}: {error}")
                continue
            best = results.setdefault(name, {})
            for key, value in json.loads(process.stdout).items():
                best[key] = min(value, best.get(key, value))
    return results
