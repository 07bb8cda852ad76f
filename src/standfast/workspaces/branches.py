"""Workspaces that follow their conversations: when a session or run is forked, rewound or deleted."""

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from standfast.base.errors import Unsupported
from standfast.store.backend import Backend
from standfast.store.operations import DeleteWorkspace, Op
from standfast.store.records import WorkspaceRecord
from standfast.workers.errors import WorkspaceRefused
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.versions import (
    Cell,
    WorkspaceVersion,
    choose_version,
    find_version,
    name_nested_workspace,
    trace_line,
)

_PAGE_SIZE = 200


async def find_workspace(backend: Backend, key: str) -> WorkspaceRecord | None:
    """Return the workspace of this key; a store without runs has none."""
    try:
        return await backend.get_workspace(key)
    except Unsupported:
        return None


async def build_deletion_ops(backend: Backend, *keys: str) -> list[Op]:
    """Return the operations that delete the workspaces that exist, for the commit that deletes their conversation.

    Those of nested runs are deleted with them.
    """
    found = [key for key in keys if await find_workspace(backend, key) is not None]
    for key in keys:
        found += [nested async for nested in iter_nested_workspaces(backend, key)]
    return [DeleteWorkspace(key) for key in found]


async def iter_nested_workspaces(backend: Backend, key: str) -> AsyncIterator[str]:
    """Yield the keys of the workspaces that nested runs have in place of this one."""
    prefix = after = name_nested_workspace(key)
    while True:
        try:
            page = await backend.list_workspaces(limit=_PAGE_SIZE, after=after)
        except Unsupported:  # a store without runs
            return
        for record in page:
            if not record.key.startswith(prefix):
                return
            yield record.key
        if not page:
            return
        after = page[-1].key


async def build_fork_ops(
    backend: Backend, source: str, target: str, outputs: Sequence[str] | None, *, any_line: bool = False
) -> list[Op]:
    """Return the operations that create the workspace of a fork, as that of its origin was after these calls.

    ``outputs`` are the ids of the calls whose outputs the fork has, ``None`` for all of them. With ``any_line`` they
    may be of a part of the conversation that was rewound since.
    """
    record = await find_workspace(backend, source)
    if record is None:
        return []
    storage = WorkspaceStorage(backend)
    try:
        number = await _find_number(storage, record, outputs, any_line=any_line)
        return await storage.build_copy_ops(source, number, target)
    except WorkspaceRefused:
        raise make_unreadable_error(source, "forked") from None


async def build_rewind_ops(backend: Backend, key: str, outputs: Sequence[str]) -> list[Op]:
    """Return the operations that rewind a workspace to where it was after these calls, as its next version."""
    record = await find_workspace(backend, key)
    if record is None:
        return []
    storage = WorkspaceStorage(backend)
    try:
        number = await _find_number(storage, record, outputs)
    except WorkspaceRefused:
        raise make_unreadable_error(key, "rewound") from None
    return [storage.build_append_op(key, record, Cell(number))] if number != record.version else []


async def build_restore_ops(backend: Backend, key: str, before: Sequence[str], since: Sequence[str]) -> list[Op]:
    """Return the operations for a conversation that was rewound, then got other calls, and has all of them now.

    ``before`` are the ids of the calls of the part that was rewound, ``since`` those made after that. The workspace
    becomes that of the former part, and the cells of the latter follow it, to be run again.
    """
    record = await find_workspace(backend, key)
    if record is None:
        return []
    storage = WorkspaceStorage(backend)
    try:
        versions = await storage.read_versions(key)
    except WorkspaceRefused:
        raise make_unreadable_error(key, "restored") from None
    base, whole = choose_version(versions, before), choose_version(versions, [*before, *since])
    again = [one.cell for one in trace_line(versions, record.version) if find_version([one], since)]
    calls = list_calls(versions, base) + [cell.call for cell in again]
    # Cells without code are those of a sandbox, whose files nothing can make again.
    if list_calls(versions, whole) == calls or not all(cell.code for cell in again):
        return [] if whole == record.version else [storage.build_append_op(key, record, Cell(whole))]
    numbers = [base, *range(record.version + 1, record.version + len(again))]
    cells = [replace(cell, parent=parent) for cell, parent in zip(again, numbers, strict=True)]
    return [storage.build_append_op(key, record, *cells)]


def list_calls(versions: Sequence[WorkspaceVersion], number: int) -> list[str]:
    """Return the ids of the calls that made the versions of a line."""
    return [one.cell.call for one in trace_line(versions, number) if one.cell.call]


def make_unreadable_error(key: str, action: str) -> Unsupported:
    """Return the error for a workspace that a session without its key, or a damaged one, cannot take along."""
    return Unsupported(
        f"the workspace {key!r} cannot be {action} together with its conversation: it is encrypted or damaged. Nothing"
        " was changed. Use the session of a runtime with the key: Runtime.open(url, encryption_key=...).session(id)"
    )


async def _find_number(
    storage: WorkspaceStorage, record: WorkspaceRecord, outputs: Sequence[str] | None, *, any_line: bool = False
) -> int:
    if outputs is None:
        return record.version
    versions = await storage.read_versions(record.key)
    if any_line:
        return choose_version(versions, outputs)
    line = trace_line(versions, record.version)
    number = find_version(line, outputs)
    # The version itself may be one that went back to it.
    return record.version if line and number == line[-1].number else number
