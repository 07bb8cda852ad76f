"""``migrate``: rewrite the imports of a program from openai-agents to standfast; the rest of a file is not changed."""

import ast
import difflib
import importlib
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from standfast.cli.commands._errors import command
from standfast.cli.commands._output import AsJson, CommandPrinter, escape, escape_lines

OLD, NEW = "agents", "standfast"
DEPENDENCY_FILES = ("pyproject.toml", "requirements*.txt", "setup.cfg", "setup.py", "Pipfile", "environment.yml")
SKIPPED_FOLDERS = frozenset([".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages", "build", "dist"])


@dataclass(frozen=True)
class Remainder:
    """A place that was not rewritten and needs a person."""

    file: str
    line: int
    problem: str


@dataclass
class MigratedFile:
    """A file with its text before and after."""

    path: Path
    before: str
    after: str
    remainders: list[Remainder] = field(default_factory=list)


def migrate_tree(root: Path) -> tuple[list[MigratedFile], list[Remainder]]:
    """Return the changed Python files below ``root``, or that file, and what is left to do. Nothing is written."""
    files = [root] if root.is_file() else sorted(_iter_files(root))
    changed, left = [], []
    for path in files:
        if path.suffix == ".py":
            migrated = migrate_file(path, root if root.is_dir() else root.parent)
            left += migrated.remainders
            if migrated.after != migrated.before:
                changed.append(migrated)
        elif any(path.match(pattern) for pattern in DEPENDENCY_FILES):
            left += _find_dependency(path)
    return changed, left


def _iter_files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_file() and not SKIPPED_FOLDERS & set(path.relative_to(root).parts[:-1]):
            yield path


def migrate_file(path: Path, root: Path) -> MigratedFile:
    """Return the file with the first word of its imports replaced."""
    with path.open(encoding="utf-8", newline="") as file:
        before = file.read()
    migrated = MigratedFile(path, before, before)
    if OLD not in before:
        return migrated
    try:
        tree = ast.parse(before)
    except SyntaxError as error:
        migrated.remainders.append(Remainder(str(path), error.lineno or 1, "it cannot be parsed"))
        return migrated
    own = [folder for folder in {root, path.parent} if _has_own_module(folder)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _names_old_package(node)]
    if own and imports:
        problem = f"{own[0] / OLD} is a module of this program: its imports were left alone"
        migrated.remainders.append(Remainder(str(path), imports[0].lineno, problem))
        return migrated
    migrated.after = _replace(before, list(_find_edits(tree, before)))
    migrated.remainders += _find_remainders(path, tree)
    return migrated


def _has_own_module(folder: Path) -> bool:
    """Return whether ``import agents`` means a module in this folder; in a package it is ``from . import agents``."""
    has_module = (folder / f"{OLD}.py").exists() or (folder / OLD).is_dir()
    return has_module and not (folder / "__init__.py").exists()


def _names_old_package(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.level == 0 and _is_old(node.module or "")
    return isinstance(node, ast.Import) and any(_is_old(alias.name) for alias in node.names)


def _is_old(module: str) -> bool:
    return module == OLD or module.startswith(f"{OLD}.")


def _find_edits(tree: ast.Module, text: str) -> Iterator[tuple[int, int, str]]:
    """Yield the parts of the text to replace, as start, end and replacement."""
    starts = _get_line_starts(text)
    bound, rebound = _find_bindings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _names_old_package(node):
            start = _get_offset(starts, text, node.lineno, node.col_offset)
            found = re.compile(r"from(?:\s|\\\n)+(agents)\b").match(text, start)
            if found is not None:
                yield found.start(1), found.end(1), NEW
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_old(alias.name):
                    start = _get_offset(starts, text, alias.lineno, alias.col_offset)
                    keeps_name = alias.name == OLD and alias.asname is None and rebound
                    yield start, start + len(OLD), f"{NEW} as {OLD}" if keeps_name else NEW
        elif bound and not rebound and isinstance(node, ast.Name) and node.id == OLD:
            start = _get_offset(starts, text, node.lineno, node.col_offset)
            yield start, start + len(OLD), NEW


def _find_bindings(tree: ast.Module) -> tuple[bool, bool]:
    """Return whether an import binds the name ``agents``, and whether something else binds it, too."""
    bound = rebound = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            bound = bound or any(_is_old(alias.name) and alias.asname is None for alias in node.names)
            rebound = rebound or any(alias.asname == OLD for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            rebound = rebound or any((alias.asname or alias.name) == OLD for alias in node.names)
        elif isinstance(node, ast.Name) and node.id == OLD:
            rebound = rebound or not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.arg | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            rebound = rebound or (node.arg if isinstance(node, ast.arg) else node.name) == OLD
    return bound, rebound


def _get_line_starts(text: str) -> list[int]:
    return [0, *(found.end() for found in re.finditer(r"\r\n|\r|\n", text))]


def _get_offset(starts: list[int], text: str, line: int, column: int) -> int:
    """Return the place in the text; the column counts bytes of UTF-8."""
    start = starts[line - 1]
    return start + len(text[start : start + column].encode()[:column].decode(errors="ignore"))


def _replace(text: str, edits: list[tuple[int, int, str]]) -> str:
    for start, end, replacement in sorted(edits, reverse=True):
        text = text[:start] + replacement + text[end:]
    return text


def _find_remainders(path: Path, tree: ast.Module) -> Iterator[Remainder]:
    """Yield names that standfast does not have, and texts that look like module paths."""
    bound, rebound = _find_bindings(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and _names_old_package(node):
            module = NEW + (node.module or "")[len(OLD) :]
            for alias in node.names:
                if not _exists(module, alias.name):
                    yield Remainder(str(path), node.lineno, f"standfast has no {module}.{alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if not _is_old(alias.name):
                    continue
                if not _exists(NEW + alias.name[len(OLD) :]):
                    yield Remainder(str(path), node.lineno, f"standfast has no module {NEW}{alias.name[len(OLD) :]}")
                if rebound and alias.asname is None and alias.name != OLD:
                    problem = f"the name {OLD!r} has several meanings in this file: check what uses {alias.name}"
                    yield Remainder(str(path), node.lineno, problem)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == OLD:
            if bound and not _exists(NEW, node.attr):
                yield Remainder(str(path), node.lineno, f"standfast has no {NEW}.{node.attr}")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"agents(\.\w+)+", node.value)
        ):
            yield Remainder(str(path), node.lineno, f"the text {node.value!r} may be a module path")


def _exists(module: str, name: str | None = None) -> bool:
    try:
        found = importlib.import_module(module)
        return name is None or name == "*" or hasattr(found, name) or _exists(f"{module}.{name}")
    except ImportError as error:
        # A module that needs a missing extra exists all the same.
        return not isinstance(error, ModuleNotFoundError) or not str(error.name).startswith(NEW)


def _find_dependency(path: Path) -> Iterator[Remainder]:
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if re.search(r"\bopenai-agents\b", line):
            yield Remainder(str(path), number, "the dependency openai-agents: put standfast[openai] in its place")


@command
async def migrate(
    path: Annotated[
        Path, typer.Argument(metavar="PATH", help="A Python file, or a folder with Python files.", exists=True)
    ],
    write: Annotated[bool, typer.Option("--write", help="Change the files. Without it they are only shown.")] = False,
    as_json: AsJson = False,
) -> int:
    """Replace the imports of openai-agents by those of standfast, and list what is left to do.

    standfast migrate src
    standfast migrate src --write
    """
    changed, left = migrate_tree(path)
    if write:
        for file in changed:
            file.path.write_text(file.after, encoding="utf-8", newline="")
    result = {
        "written": write,
        "files": [str(file.path) for file in changed],
        "left": [asdict(remainder) for remainder in left],
    }
    CommandPrinter(as_json).print_result(result, format_migration(changed, left, write=write))
    return 0


def format_migration(changed: list[MigratedFile], left: list[Remainder], *, write: bool) -> str:
    parts = [] if write else [escape_lines(make_diff(file)) for file in changed]
    parts += [escape(f"{remainder.file}:{remainder.line}: {remainder.problem}") for remainder in left]
    verb = "changed" if write else "to change (--write changes them)"
    parts.append(f"{len(changed)} files {verb}, {len(left)} places to check by hand")
    return "\n".join(parts)


def make_diff(file: MigratedFile) -> str:
    before, after = file.before.splitlines(keepends=True), file.after.splitlines(keepends=True)
    return "".join(difflib.unified_diff(before, after, str(file.path), str(file.path), n=1)).rstrip("\n")
