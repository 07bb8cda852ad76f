"""Parse docstrings in the styles of Google, NumPy and Sphinx: the description, and that of each parameter."""

import functools
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

DocstringStyle: TypeAlias = Literal["google", "numpy", "sphinx"]

_GOOGLE_PARAMETERS = frozenset(["args", "arguments", "params", "parameters", "keyword args", "keyword arguments"])
_GOOGLE_OTHER_SECTIONS = frozenset(
    ["return", "returns", "yield", "yields", "raise", "raises", "exceptions", "example", "examples", "note", "notes"]
)
_GOOGLE_RARE_SECTIONS = frozenset(["warning", "warnings", "attributes", "todo", "references", "tip", "see also"])
_GOOGLE_SECTIONS = _GOOGLE_PARAMETERS | _GOOGLE_OTHER_SECTIONS | _GOOGLE_RARE_SECTIONS
_NUMPY_PARAMETERS = frozenset(["parameters", "other parameters"])

_GOOGLE_HEADING = re.compile(r"^([A-Za-z][A-Za-z ]*):\s*$")
_GOOGLE_ENTRY = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\)|\[[^\]]*\])?\s*:\s*(.*)$")
_NUMPY_UNDERLINE = re.compile(r"^-{3,}\s*$")
_NUMPY_ENTRY = re.compile(r"^(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?$")
_SPHINX_FIELD = re.compile(r"^:(\w+)(?:\s+([^:]*?))?\s*:\s*(.*)$")
_SPHINX_PARAMETERS = frozenset(["param", "parameter", "arg", "argument", "key", "keyword"])


@dataclass(frozen=True)
class Documentation:
    """The text before the first section, and the description of each parameter."""

    description: str | None = None
    parameters: dict[str, str] = field(default_factory=dict)


def parse_docstring(func: Any, style: DocstringStyle | None = None) -> Documentation:
    """Parse the docstring of ``func``. Without a ``style`` it is detected."""
    while isinstance(func, functools.partial):
        func = func.func
    text = inspect.getdoc(func)
    if not text and not inspect.isroutine(func) and not inspect.isclass(func):
        text = inspect.getdoc(type(func).__call__)  # an object that can be called
    if not text or not text.strip():
        return Documentation()
    lines = text.strip().splitlines()
    return _PARSERS[style or detect_style(lines)](lines)


def detect_style(lines: list[str]) -> DocstringStyle:
    """Return the style of a docstring: Sphinx if it has fields, NumPy if it has underlined headings, else Google."""
    if any(match and match[1] in _SPHINX_PARAMETERS | {"type", "returns", "return", "rtype", "raises"}
           for match in map(_SPHINX_FIELD.match, lines)):  # fmt: skip
        return "sphinx"
    if any(_NUMPY_UNDERLINE.match(line) and index and lines[index - 1].strip() for index, line in enumerate(lines)):
        return "numpy"
    return "google"


def _parse_google(lines: list[str]) -> Documentation:
    def find_heading(index: int) -> str | None:
        match = _GOOGLE_HEADING.match(lines[index])
        return match[1].lower() if match and match[1].lower() in _GOOGLE_SECTIONS else None

    before, sections = _split_sections(lines, find_heading, skip=1)
    parameters: dict[str, str] = {}
    for title, body in sections:
        if title in _GOOGLE_PARAMETERS:
            for first, rest in _split_entries(body):
                match = _GOOGLE_ENTRY.match(first)
                if match:
                    parameters[match[1]] = _join_lines([match[2], *rest])
    return Documentation(_join_lines(before) or None, parameters)


def _parse_numpy(lines: list[str]) -> Documentation:
    def find_heading(index: int) -> str | None:
        underlined = index + 1 < len(lines) and _NUMPY_UNDERLINE.match(lines[index + 1])
        return lines[index].strip().lower() if underlined and lines[index].strip() else None

    before, sections = _split_sections(lines, find_heading, skip=2)
    parameters: dict[str, str] = {}
    for title, body in sections:
        if title in _NUMPY_PARAMETERS:
            for first, rest in _split_entries(body):
                match = _NUMPY_ENTRY.match(first)
                for name in match[1].split(",") if match else ():
                    parameters[name.strip().lstrip("*")] = _join_lines(rest)
    return Documentation(_join_lines(before) or None, parameters)


def _parse_sphinx(lines: list[str]) -> Documentation:
    before: list[str] = []
    fields: list[tuple[str, str, list[str]]] = []
    for line in lines:
        match = _SPHINX_FIELD.match(line)
        if match:
            fields.append((match[1], match[2] or "", [match[3]]))
        elif fields and (line.startswith((" ", "\t")) or not line.strip()):
            fields[-1][2].append(line)
        elif not fields:
            before.append(line)
    parameters = {
        subject.split()[-1].lstrip("*\\"): _join_lines(text)
        for kind, subject, text in fields
        if kind in _SPHINX_PARAMETERS and subject
    }
    return Documentation(_join_lines(before) or None, parameters)


_PARSERS = {"google": _parse_google, "numpy": _parse_numpy, "sphinx": _parse_sphinx}


def _split_sections(lines: list[str], find_heading: Any, *, skip: int) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the lines before the first heading, and each heading with the lines under it."""
    headings = [(index, title) for index in range(len(lines)) if (title := find_heading(index)) is not None]
    if not headings:
        return lines, []
    ends = [*(index for index, _ in headings[1:]), len(lines)]
    sections = [(title, lines[index + skip : end]) for (index, title), end in zip(headings, ends, strict=True)]
    return lines[: headings[0][0]], sections


def _split_entries(body: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the entries of a section: a line at its outermost indentation, and the deeper lines that follow."""
    depth = min((len(line) - len(line.lstrip()) for line in body if line.strip()), default=0)
    first: str | None = None
    rest: list[str] = []
    for line in body:
        if line.strip() and len(line) - len(line.lstrip()) <= depth:
            if first is not None:
                yield first, rest
            first, rest = line.strip(), []
        elif first is not None:
            rest.append(line)
    if first is not None:
        yield first, rest


def _join_lines(lines: list[str]) -> str:
    """Join lines, without the common indentation of all but the first."""
    if not lines:
        return ""
    return inspect.cleandoc("\n".join(lines)).strip()
