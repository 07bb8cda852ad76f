import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from terminals import Terminal
from typer.testing import CliRunner, Result

from commands import CommandProcess
from standfast import open_store
from standfast.cli.app import app

TURN = [
    {"role": "user", "content": "Refund order 7, please."},
    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"order": 7}'},
    {"type": "function_call_output", "call_id": "c1", "output": "delivered"},
    {"role": "assistant", "content": "Shall I go on?"},
]


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command adds the folder of its agent to ``sys.path`` for as long as its process lasts."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'app.db'}"


@pytest.fixture
def stored_url(url: str) -> str:
    """A store with one session, user-7."""

    async def fill() -> None:
        async with open_store(url) as store:
            await store.session("user-7", owner="ann").add_items(TURN)

    asyncio.run(fill())
    return url


@pytest.fixture
def standfast(url: str) -> Callable[..., Result]:
    """Run a command on the test's store."""

    def run(*words: str, stdin: str | None = None) -> Result:
        return CliRunner(env={"STANDFAST_STORE": url}).invoke(app, list(words), input=stdin)

    return run


@pytest.fixture
def run_json(standfast: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command with --json and return the parsed output."""

    def run(*words: str, code: int = 0, stdin: str | None = None) -> Any:
        result = standfast(*words, "--json", stdin=stdin)
        assert result.exit_code == code, result.output
        return json.loads(result.stdout)

    return run


@pytest.fixture
def terminal(tmp_path: Path, command_process: CommandProcess) -> Iterator:
    opened: list[Terminal] = []

    def open_terminal(*words: str, fresh: bool = False, **environment: str) -> Terminal:
        opened.append(
            Terminal(command_process, tmp_path, *words, fresh=fresh, PAID=str(tmp_path / "paid"), **environment)
        )
        return opened[-1]

    yield open_terminal
    for one in opened:
        one.close()
