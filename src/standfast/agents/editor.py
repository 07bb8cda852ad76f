"""The apply_patch tool: the model asks to create, change and delete files, which the program's editor does.

:func:`apply_diff` applies the diffs that models write for it. A diff has sections that begin with ``@@`` and,
optionally, a line of the file to search from. Lines of a section begin with a space (unchanged), ``-`` (remove) or
``+`` (add). ``*** End of File`` means that the section is at the end.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, Protocol, TypeAlias, runtime_checkable

from typing_extensions import TypedDict

from standfast.agents.errors import ModelBehaviorError
from standfast.agents.local_tools import declare_tool, make_local_function
from standfast.agents.tools import FunctionTool, LocalTool, LocalToolResult, ToolCaller
from standfast.agents.types import MaybeAwaitable, maybe_await
from standfast.base.log import get_logger

if TYPE_CHECKING:
    from standfast.agents.context import RunContextWrapper, ToolContext

log = get_logger("standfast.tools")

ApplyPatchOperationType: TypeAlias = Literal["create_file", "update_file", "delete_file"]


@dataclass
class ApplyPatchOperation:
    """One change of a file. ``diff`` is for :func:`apply_diff`; deleting needs none."""

    type: ApplyPatchOperationType
    path: str
    diff: str | None = None
    ctx_wrapper: "RunContextWrapper[Any] | None" = None
    move_to: str | None = None

    @classmethod
    def parse(
        cls, operation: Mapping[str, Any], context: "RunContextWrapper[Any] | None" = None
    ) -> "ApplyPatchOperation":
        """Return the change in the ``operation`` of a call."""
        kind, path, diff = operation.get("type"), operation.get("path"), operation.get("diff")
        if kind not in ("create_file", "update_file", "delete_file") or not isinstance(path, str) or not path:
            raise ModelBehaviorError(f"an apply_patch call must name an operation and a path, got {kind!r} {path!r}")
        if kind != "delete_file" and not isinstance(diff, str):
            raise ModelBehaviorError(f"the operation {kind} needs a diff")
        return cls(kind, path, diff, context, operation.get("move_to"))


@dataclass
class ApplyPatchResult:
    """What an editor did; without a status it was done."""

    status: Literal["completed", "failed"] | None = None
    output: str | None = None


@runtime_checkable
class ApplyPatchEditor(Protocol):
    """Changes files for the model. It decides which paths are allowed."""

    def create_file(self, operation: ApplyPatchOperation) -> MaybeAwaitable[ApplyPatchResult | str | None]:
        """Create the file that the operation describes."""

    def update_file(self, operation: ApplyPatchOperation) -> MaybeAwaitable[ApplyPatchResult | str | None]:
        """Apply the diff of the operation to its file."""

    def delete_file(self, operation: ApplyPatchOperation) -> MaybeAwaitable[ApplyPatchResult | str | None]:
        """Delete the file that the operation names."""


class ApplyPatchOnApprovalFunctionResult(TypedDict):
    approve: bool
    reason: NotRequired[str]


@dataclass
class ApplyPatchToolCustomDataContext:
    """The argument of the ``custom_data_extractor`` of an apply_patch tool."""

    run_context: "RunContextWrapper[Any]"
    tool: "ApplyPatchTool"
    operations: list[ApplyPatchOperation]
    output: str
    status: Literal["completed", "failed"]
    raw_item: Mapping[str, Any]


ApplyPatchApprovalFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", ApplyPatchOperation, str], MaybeAwaitable[bool]
]
ApplyPatchOnApprovalFunction: TypeAlias = Callable[
    ["RunContextWrapper[Any]", Any], MaybeAwaitable[ApplyPatchOnApprovalFunctionResult]
]
ApplyPatchToolCustomDataExtractor: TypeAlias = Callable[
    [ApplyPatchToolCustomDataContext], MaybeAwaitable[Mapping[str, Any] | None]
]


@dataclass
class ApplyPatchTool(LocalTool):
    """Lets the model change files through ``editor``. An exception of the editor is a failed change."""

    editor: ApplyPatchEditor
    name: str = "apply_patch"
    needs_approval: bool | ApplyPatchApprovalFunction = False
    on_approval: ApplyPatchOnApprovalFunction | None = None
    custom_data_extractor: ApplyPatchToolCustomDataExtractor | None = field(default=None, kw_only=True)
    allowed_callers: list[ToolCaller] | None = field(default=None, kw_only=True)

    call_type: ClassVar[str] = "apply_patch_call"

    @property
    def type(self) -> str:
        """The type of the tool in requests to a model."""
        return "apply_patch"

    def to_declaration(self, model: str | None) -> dict[str, Any]:
        return declare_tool(self, "apply_patch")

    def as_function_tool(self) -> FunctionTool:
        return make_local_function(
            self, self._invoke, needs_approval=self.needs_approval, parse_request=ApplyPatchOperation.parse
        )

    async def _invoke(self, context: "ToolContext[Any]", arguments: str) -> LocalToolResult:
        operation = ApplyPatchOperation.parse(json.loads(arguments), context)
        status: Literal["completed", "failed"] = "completed"
        try:
            result = await maybe_await(getattr(self.editor, operation.type)(operation))
        except Exception as error:
            log.exception("the editor of the tool %r failed", self.name)
            result = ApplyPatchResult("failed", str(error))
        if isinstance(result, ApplyPatchResult):
            status, output = result.status or "completed", result.output or ""
        else:
            output = "" if result is None else str(result)
        item: dict[str, Any] = {"type": "apply_patch_call_output", "status": status}
        if output:
            item["output"] = output
        if self.custom_data_extractor is None:
            return LocalToolResult(output, item)
        raw_item = {**item, "call_id": context.tool_call_id}
        data = ApplyPatchToolCustomDataContext(context, self, [operation], output, status, raw_item)
        return LocalToolResult(output, item, await maybe_await(self.custom_data_extractor(data)))


ApplyDiffMode: TypeAlias = Literal["default", "create"]

_END_OF_FILE = "*** End of File"
# A model may get white space wrong: compare exactly, then without trailing, then without any white space around.
_COMPARISONS: tuple[Callable[[str], str], ...] = (str, str.rstrip, str.strip)


@dataclass
class _Section:
    markers: int = 0
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
    return _get_newline(input or diff).join([*result, *lines[cursor:]])


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
            current.markers += 1
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
    """Return the position of the section's first line, at or behind ``cursor``.

    A single anchor is a hint. Several say where the lines are: without them, equal lines of another place would change.
    """
    for anchor in section.anchors:
        found = _find_lines(lines, [anchor], cursor)
        if found is None and section.markers > 1:
            raise ValueError(f"Invalid Anchor {cursor}:\n{anchor}")
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
