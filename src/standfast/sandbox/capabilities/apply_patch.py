"""Patches of files in the workspace, as text that the model writes."""

import io
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from standfast.agents.editor import (
    ApplyDiffMode,
    ApplyPatchApprovalFunction,
    ApplyPatchOnApprovalFunction,
    ApplyPatchOperation,
    ApplyPatchResult,
    apply_diff,
)
from standfast.agents.local_tools import CustomTool
from standfast.agents.types import maybe_await
from standfast.sandbox.errors import (
    ApplyPatchDecodeError,
    ApplyPatchDiffError,
    ApplyPatchFileNotFoundError,
    ApplyPatchPathError,
    InvalidManifestPathError,
    SandboxError,
    WorkspaceReadNotFoundError,
)
from standfast.sandbox.sessions import BaseSandboxSession
from standfast.sandbox.types import PatchOperations, User
from standfast.sandbox.workspace_paths import SandboxWorkspaceScope

_BEGIN, _END, _MOVE = "*** Begin Patch", "*** End Patch", "*** Move to: "
_HEADERS = {
    "*** Add File: ": "create_file",
    "*** Update File: ": "update_file",
    "*** Delete File: ": "delete_file",
}
DESCRIPTION = f"""\
Edits files of the workspace. Write the patch as it is, without JSON around it:

{_BEGIN}
*** Add File: <path>        then the lines of the new file, each with + in front
*** Update File: <path>     then, optionally, "{_MOVE}<new path>", and one or more hunks
*** Delete File: <path>
{_END}

A hunk begins with a line "@@", which may name the class or function to search from. Its lines have a space (context),
- (to remove) or + (to add) in front. Give about three lines of context before and after a change. Several operations
may follow one another. Paths are relative to the workspace."""
GRAMMAR = r"""start: begin operation+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
operation: add | delete | update
add: "*** Add File: " path LF added+
delete: "*** Delete File: " path LF
update: "*** Update File: " path LF move? change+ last?
move: "*** Move to: " path LF
change: section | line
section: "@@" /.*/ LF
line: /[ +-]/ /.*/ LF
added: "+" /.*/ LF
last: "*** End of File" LF
path: /.+/
%import common.LF"""


class PatchError(ValueError):
    """A patch is malformed, or does not fit the files."""


def parse_patch(text: str) -> list[ApplyPatchOperation]:
    """Return the operations of a patch in their order, or raise :class:`PatchError`."""
    lines = text.replace("\r\n", "\n").strip("\n").split("\n")
    if lines[0].strip() != _BEGIN or len(lines) < 2 or lines[-1].strip() != _END:
        raise PatchError(f"a patch must begin with {_BEGIN!r} and end with {_END!r}")
    operations: list[ApplyPatchOperation] = []
    for line in lines[1:-1]:
        header = next((prefix for prefix in _HEADERS if line.startswith(prefix)), None)
        if header is not None:
            kind: Any = _HEADERS[header]
            operations.append(ApplyPatchOperation(kind, line.removeprefix(header).strip(), diff=""))
        elif not operations:
            raise PatchError(f"expected the header of a file, such as '*** Update File: <path>', got {line!r}")
        elif line.startswith(_MOVE) and operations[-1].type == "update_file" and not operations[-1].diff:
            operations[-1].move_to = line.removeprefix(_MOVE).strip()
        else:
            operations[-1].diff = f"{operations[-1].diff}{line}\n"
    if not operations:
        raise PatchError("the patch changes nothing")
    return operations


class SandboxApplyPatchEditor:
    """Changes files of a workspace. Paths are relative to the scope of the run."""

    def __init__(
        self,
        session: BaseSandboxSession,
        *,
        user: str | User | None = None,
        workspace_scope: SandboxWorkspaceScope | None = None,
        apply_diff: Callable[[str, str, ApplyDiffMode], str] = apply_diff,
    ) -> None:
        self._session, self._user, self._scope = session, user, workspace_scope or SandboxWorkspaceScope()
        self._patch = apply_diff

    async def create_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Create a file; one that exists is refused."""
        path = self._locate(operation.path)
        if await self._read(path) is not None:
            message = f"{operation.path} already exists: use '*** Update File: '"
            raise ApplyPatchDiffError(message=message, path=operation.path)
        await self._write(path, self._apply_diff(operation, "", "create"))
        return ApplyPatchResult("completed", f"Created {operation.path}")

    async def update_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Apply a diff to a file."""
        path = self._locate(operation.path)
        before = await self._require(path, operation.path)
        after = self._apply_diff(operation, before, "default") if operation.diff else before
        text = f"Updated {operation.path}"
        if operation.move_to:
            target = self._locate(operation.move_to)
            await self._write(target, after)
            await self._session.rm(path, user=self._user)
            return ApplyPatchResult("completed", f"{text}\nMoved {operation.path} to {operation.move_to}")
        await self._write(path, after)
        return ApplyPatchResult("completed", text)

    async def delete_file(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Delete a file."""
        path = self._locate(operation.path)
        await self._require(path, operation.path)
        await self._session.rm(path, user=self._user)
        return ApplyPatchResult("completed", f"Deleted {operation.path}")

    async def apply(self, operation: ApplyPatchOperation) -> ApplyPatchResult:
        """Carry out an operation of a patch."""
        edits: dict[str, Callable[[ApplyPatchOperation], Awaitable[ApplyPatchResult]]] = {
            "create_file": self.create_file,
            "update_file": self.update_file,
            "delete_file": self.delete_file,
        }
        if operation.type not in edits:
            raise ApplyPatchDiffError(message=f"unknown operation {operation.type!r}", path=operation.path)
        return await edits[operation.type](operation)

    def _apply_diff(self, operation: ApplyPatchOperation, text: str, mode: ApplyDiffMode) -> str:
        try:
            return self._patch(text, operation.diff or "", mode)
        except ValueError as error:
            raise ApplyPatchDiffError(message=str(error), path=operation.path, cause=error) from error

    def _locate(self, path: str) -> Path:
        try:
            return Path(self._session.to_workspace_path(str(self._scope.anchor(path))))
        except InvalidManifestPathError as error:
            raise ApplyPatchPathError(path=path, reason="escape_root", cause=error) from error

    async def _read(self, path: Path) -> str | None:
        try:
            content: bytes = (await self._session.read(path, user=self._user)).read()
        except WorkspaceReadNotFoundError:
            return None
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise ApplyPatchDecodeError(path=path, cause=error) from error

    async def _require(self, path: Path, name: str) -> str:
        text = await self._read(path)
        if text is None:
            raise ApplyPatchFileNotFoundError(path=Path(name))
        return text

    async def _write(self, path: Path, text: str) -> None:
        await self._session.write(path, io.BytesIO(text.encode()), user=self._user)


async def apply_operations(session: BaseSandboxSession, operations: PatchOperations, format: Any = None) -> str:
    """Apply operations, which may be plain data, to the files of a session."""
    editor = SandboxApplyPatchEditor(session, apply_diff=apply_diff if format is None else format.apply_diff)
    listed = operations if isinstance(operations, list) else [operations]
    for operation in listed:
        await editor.apply(
            operation if isinstance(operation, ApplyPatchOperation) else ApplyPatchOperation(**operation)
        )
    return "Done!"


class SandboxApplyPatchTool(CustomTool):
    """Lets the model patch files. A person approves each change if ``needs_approval`` requires it."""

    def __init__(
        self,
        *,
        session: BaseSandboxSession,
        user: str | User | None = None,
        needs_approval: bool | ApplyPatchApprovalFunction = False,
        on_approval: ApplyPatchOnApprovalFunction | None = None,
        workspace_scope: SandboxWorkspaceScope | None = None,
    ) -> None:
        self._editor = SandboxApplyPatchEditor(session, user=user, workspace_scope=workspace_scope)
        super().__init__(
            name="apply_patch",
            description=DESCRIPTION,
            on_invoke_tool=self._apply,
            format={"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
            needs_approval=needs_approval if isinstance(needs_approval, bool) else _make_approval_check(needs_approval),
            on_approval=on_approval,
        )

    def parse_custom_input(self, raw_input: str) -> list[ApplyPatchOperation]:
        """Return the operations of a patch."""
        return parse_patch(raw_input)

    async def _apply(self, context: Any, text: str) -> str:
        done: list[str] = []
        for operation in parse_patch(text):
            try:
                done.append((await self._editor.apply(operation)).output or "")
            except SandboxError as error:
                raise PatchError("\n".join([*done, f"{operation.path}: {error}"])) from error
        return "\n".join(done)


def _make_approval_check(check: ApplyPatchApprovalFunction) -> Callable[[Any, str, str], Awaitable[bool]]:
    """Return a function that asks about every operation of a patch; one that cannot be read needs no approval."""

    async def needs_approval(context: Any, text: str, call_id: str) -> bool:
        try:
            operations = parse_patch(text)
        except PatchError:
            return False
        return any([await maybe_await(check(context, operation, call_id)) for operation in operations])

    return needs_approval
