"""Apply the diffs that models write for the apply_patch tool.

A diff has sections that begin with ``@@`` and, optionally, a line of the file to search from. Lines of a section begin
with a space (as it is), ``-`` (remove) or ``+`` (add). ``*** End of File`` says that the section is at the end.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

ApplyDiffMode: TypeAlias = Literal["default", "create"]

_END_OF_FILE = "*** End of File"
# A model may get white space wrong: compare exactly, then without trailing, then without any white space around.
_COMPARISONS: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip)


@dataclass
class _Section:
    anchors: list[str] = field(default_factory=list)
    changes: list[tuple[str, str]] = field(default_factory=list)
    at_end: bool = False

    @property
    def old_lines(self) -> list[str]:
        return [text for sign, text in self.changes if sign != "+"]


def apply_diff(input: str, diff: str, mode: ApplyDiffMode = "default") -> str:
    """Return ``input`` with the diff applied; in the mode ``create`` the diff is the new file, every line with ``+``.

    Raises :class:`ValueError` if the diff is malformed or its lines are not found.
    """
    changes = diff.replace("\r\n", "\n").removesuffix("\n").split("\n") if diff else []
    if mode == "create":
        return _get_newline(diff).join(_read_added_lines(changes))
    lines = input.replace("\r\n", "\n").split("\n")
    result: list[str] = []
    cursor = 0
    for section in _parse_sections(changes):
        start = _locate_section(lines, section, cursor)
        result += lines[cursor:start]
        cursor = start
        for sign, text in section.changes:
            if sign == "+":
                result.append(text)
                continue
            if sign == " ":
                result.append(lines[cursor])
            cursor += 1
    return _get_newline(input).join([*result, *lines[cursor:]])


def _get_newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _read_added_lines(lines: Sequence[str]) -> list[str]:
    for line in lines:
        if not line.startswith("+"):
            raise ValueError(f"Invalid Add File Line: {line}")
    return [line[1:] for line in lines]


def _parse_sections(lines: Sequence[str]) -> list[_Section]:
    sections = [_Section()]
    for line in lines:
        current = sections[-1]
        if line.startswith("@@"):
            if current.changes:
                current = _Section()
                sections.append(current)
            if anchor := line[2:].removeprefix(" "):
                current.anchors.append(anchor)
        elif line == _END_OF_FILE:
            current.at_end = True
        elif line == "" or line[0] in " -+":
            current.changes.append((line[:1] or " ", line[1:]))
        else:
            raise ValueError(f"Invalid Line: {line}")
    return [section for section in sections if section.changes]


def _locate_section(lines: Sequence[str], section: _Section, cursor: int) -> int:
    """Return the position of the section's first line, at or behind ``cursor``."""
    for anchor in section.anchors:
        found = _find_lines(lines, [anchor], cursor)
        cursor = cursor if found is None else found + 1
    old, end = section.old_lines, len(lines) - (1 if lines[-1] == "" else 0)
    if not old:
        return max(cursor, end) if section.at_end or lines == [""] else cursor
    if section.at_end and _find_lines(lines, old, max(cursor, end - len(old))) is not None:
        cursor = max(cursor, end - len(old))
    start = _find_lines(lines, old, cursor)
    if start is None:
        raise ValueError(f"Invalid Context {cursor}:\n" + "\n".join(old))
    return start


def _find_lines(lines: Sequence[str], wanted: Sequence[str], start: int) -> int | None:
    for normalize in _COMPARISONS:
        goal = [normalize(line) for line in wanted]
        for place in range(start, len(lines) - len(wanted) + 1):
            if [normalize(line) for line in lines[place : place + len(wanted)]] == goal:
                return place
    return None
