"""The peers: installed from PyPI into environments of their own, asked in processes that stay alive.

A process that stays can take turns with ours, round by round, and nothing of its start is part of a figure.
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

from bench.progress import tell

ROOT = Path(__file__).parent.parent


class PeerMissing(Exception):
    """A peer could not be installed, started or asked. It costs the lines that compare with it, nothing else."""


@dataclass(frozen=True)
class Environment:
    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return ROOT / ".venv-peers" / self.name


AGENTS = Environment("agents", ("openai-agents>=0.22", "pydantic-ai-slim", "langgraph", "langgraph-checkpoint-sqlite"))
JUPYTER = Environment("jupyter", ("jupyter_client", "ipykernel"))


def peers_python(environment: Environment = AGENTS) -> str:
    """The interpreter of the peers' environment, made on first use and made anew when the packages change."""
    python, ready = environment.folder / "bin" / "python", environment.folder / "ready"
    wanted = "\n".join(environment.packages)
    if not ready.exists() or ready.read_text() != wanted:
        tell(f"installing {', '.join(environment.packages)}")
        try:
            command(sys.executable, "-m", "venv", str(environment.folder))
            command(str(python), "-m", "pip", "install", "-q", *environment.packages)
        except subprocess.CalledProcessError as error:
            last = (error.stderr or "").strip().splitlines()[-1:]
            raise PeerMissing(f"cannot install {', '.join(environment.packages)}: {' '.join(last)}") from None
        ready.write_text(wanted)
    return str(python)


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def versions(environment: Environment) -> dict[str, str]:
    """Of every package in it; nothing where it was not made."""
    places = [str(place) for place in environment.folder.glob("lib/python*/site-packages")]
    return {found.name: found.version for found in metadata.distributions(path=places)} if places else {}


class Peer:
    """A process that measures when it is asked: a line of JSON there, a line of JSON back."""

    def __init__(self, name: str, process: "subprocess.Popen[str]") -> None:
        self.name = name
        self._process = process

    @classmethod
    @contextmanager
    def started(cls, name: str, python: str, module: str, *arguments: str) -> Iterator["Peer"]:
        words = [python, "-W", "ignore", "-m", module, *arguments]
        pipe = subprocess.PIPE
        with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdin is not None
            try:
                yield cls(name, process)
            finally:
                try:
                    process.stdin.close()
                    process.wait(20)
                except (BrokenPipeError, subprocess.TimeoutExpired):
                    process.kill()

    def ask(self, what: str, **details: Any) -> Any:
        """The answer, which is ``None`` where the library has no such thing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, **details}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise PeerMissing(f"{self.name} ended with code {self._process.wait()} when asked for {what}")
        answer = json.loads(line)
        if "failed" in answer:
            raise PeerMissing(f"{self.name} failed at {what}: {answer['failed']}")
        return answer["found"]


@contextmanager
def peers_started(wanted: Mapping[str, tuple[Environment, Iterable[str]]]) -> Iterator[dict[str, Peer]]:
    """Those that can be had, of the wanted: an environment, a module and its arguments for each name."""
    with ExitStack() as owned:
        going: dict[str, Peer] = {}
        for name, (environment, words) in wanted.items():
            try:
                python = peers_python(environment)
                peer = owned.enter_context(Peer.started(name, python, *words))
                peer.ask("ready")
                going[name] = peer
            except PeerMissing as reason:
                tell(f"without {name}: {reason}")
        yield going


Once = tuple[Environment | None, Sequence[str]]


def best_of(rivals: Mapping[str, Once], rounds: int) -> dict[str, dict[str, float]]:
    """The least of each figure that modules print as JSON, each in a new process; they take turns.

    A module without an environment is ours and must not fail; a peer that fails is left out.
    """
    found: dict[str, dict[str, float]] = {}
    for number in range(rounds):
        for name, (environment, words) in rivals.items():
            tell(f"{words[0]}, round {number + 1} of {rounds}, {name}")
            try:
                python = sys.executable if environment is None else peers_python(environment)
                line = [python, "-W", "ignore", "-m", *words]
                done = subprocess.run(line, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
            except (PeerMissing, subprocess.CalledProcessError) as reason:
                if environment is None:
                    raise
                tell(f"without {name}: {reason}")
                continue
            best = found.setdefault(name, {})
            for key, value in json.loads(done.stdout).items():
                best[key] = min(value, best.get(key, value))
    return found
