"""Execute the code blocks of a documentation page, from top to bottom.

- ``python`` is executed, with ``await`` at the top level; all blocks of a page share a namespace.
- ``python title="app.py"``, or any other language with a title, is written to that file.
- ``console`` is run in a shell: lines after ``$`` are commands, lines after ``>`` or ``>>>`` are their input, and the
  others their output. ``...`` matches anything, and ``RUN_ID``, ``APPROVAL_ID`` and the like match one word, which
  replaces them in later commands.
- ``text`` and ``mermaid`` are not executed.
"""

import ast
import asyncio
import inspect
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from commands import CommandProcess

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(
    r'^(?P<indent> *)```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\n(?P<body>.*?)^ *```$', re.M | re.S
)
NOT_EXECUTED = ("text", "mermaid")
NOT_RUN = ("pip install", "make ", "git clone", "uvicorn ")
"""Commands that download something or never end; the other blocks of the page cover what they would start."""


@dataclass(frozen=True)
class Block:
    language: str
    title: str | None
    body: str
    line: int


def iter_blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        indent = re.compile(f"^{match['indent']}", re.M)
        body = indent.sub("", match["body"])
        yield Block(match["language"], match["title"], body, text[: match.start("body")].count("\n"))


async def run_page(page: Path, *, shell: "Shell") -> None:
    """Execute a page in the current directory."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in iter_blocks(page):
        if block.title is not None:
            write_file(block.title, block.body)
        elif block.language == "python":
            await execute(block, page, names)
        elif block.language == "console":
            await shell.run(block.body)


def write_file(file: str, body: str) -> None:
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Path(file).write_text(body)


async def execute(block: Block, page: Path, names: dict[str, object]) -> None:
    # Blank lines in front, so that a traceback shows the line of the page.
    source = "\n" * block.line + block.body
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    outcome = eval(code, names)
    if inspect.iscoroutine(outcome):
        await outcome


@dataclass
class Command:
    text: str
    typed: list[str]
    printed: list[str]


class Shell:
    """Runs commands and compares their output. ``standfast`` and ``python`` are those under test."""

    def __init__(self, programs: Path, process: CommandProcess) -> None:
        self.words: dict[str, str] = {}
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "COLUMNS": "160",
        }
        process.write_program(programs / "standfast", "-m", "standfast")
        process.write_program(programs / "python")

    async def run(self, body: str) -> None:
        code = 0
        commands = list(parse_commands(body))
        for command, following in zip(commands, [*commands[1:], None], strict=True):
            if command.text.startswith(NOT_RUN):
                continue
            for name, word in self.words.items():
                command.text = command.text.replace(name, word)
            code, shown = await self._run(command, code)
            if following is None or following.text != "echo $?":
                assert code == 0, f"{command.text} ended with {code}:\n{shown}"
            self._compare(command, shown)

    async def _run(self, command: Command, code: int) -> tuple[int, str]:
        script = f"(exit {code})\n{command.text}"
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", script, env=self.environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        typed = "".join(f"{line}\n" for line in command.typed)
        shown, _ = await asyncio.wait_for(process.communicate(typed.encode()), 150)
        return process.returncode or 0, shown.decode()

    def _compare(self, command: Command, shown: str) -> None:
        if not command.printed:
            return
        expected = " ".join(" ".join(command.printed).split())
        pattern = re.sub(r"\\\.\\\.\\\.|\b[A-Z]+_ID\b", self._wildcard(set()), re.escape(expected))
        # Prompts are part of the output, the input after them is not.
        found = " ".join(re.sub(r"(>>>|\.\.\.|^>) ", "", shown, flags=re.M).split())
        match = re.fullmatch(pattern, found, re.S)
        assert match, f"{command.text} printed\n{found}\nand not\n{expected}"
        self.words.update(match.groupdict())

    def _wildcard(self, seen: set[str]) -> Callable[[re.Match[str]], str]:
        def wildcard(match: re.Match[str]) -> str:
            name = match[0]
            if not name.endswith("_ID"):
                return ".*?"
            if name in self.words:
                return re.escape(self.words[name])
            if name in seen:
                return f"(?P={name})"
            seen.add(name)
            return rf"(?P<{name}>[\w-]+)"

        return wildcard


def parse_commands(body: str) -> Iterator[Command]:
    command: Command | None = None
    for line in body.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(line.removeprefix("$ ").partition("  # ")[0], [], [])
            continue
        assert command is not None, f"not a command: {line}"
        if command.text.endswith("\\"):
            command.text = command.text[:-1] + line.strip()
        elif (prompt := re.match(r"(>>>|\.\.\.|>) ?", line)) and line.strip() != "...":
            command.typed.append(line[prompt.end() :])
        else:
            command.printed.append(line)
    if command is not None:
        yield command
