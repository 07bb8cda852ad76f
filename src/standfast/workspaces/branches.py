"""Workspaces that follow their conversations: when a session or run is forked, rewound or deleted."""

from collections.abc import Sequence

import msgspec

from standfast.base.errors import Unsupported
from standfast.base.log import get_logger
from standfast.store.backend import Backend
from standfast.store.operations import DeleteWorkspace, Op
from standfast.store.records import WorkspaceRecord
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.versions import Cell, find_version, trace_line

_log = get_logger(__name__)


async def find_workspace(backend: Backend, key: str) -> WorkspaceRecord | None:
    """Return the workspace of this key; a store without runs has none."""
    try:
        return await backend.get_workspace(key)
    except Unsupported:
        return None


async def build_deletion_ops(backend: Backend, key: str) -> list[Op]:
    """Return the operation that deletes a workspace, if there is one, for the commit that deletes its conversation."""
    return [DeleteWorkspace(key)] if await find_workspace(backend, key) is not None else []


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
    except msgspec.MsgspecError:
        _log.warning("the workspace %s is encrypted or damaged: its fork begins with an empty one", source)
        return []


async def build_rewind_ops(backend: Backend, key: str, outputs: Sequence[str]) -> list[Op]:
    """Return the operations that take a workspace back to where it was after these calls, as its next version."""
    record = await find_workspace(backend, key)
    if record is None:
        return []
    storage = WorkspaceStorage(backend)
    try:
        number = await _find_number(storage, record, outputs)
    except msgspec.MsgspecError:  # it is encrypted, and this session has no key
        return [DeleteWorkspace(key)]
    return [storage.build_append_op(key, record, Cell(number))] if number != record.version else []


async def _find_number(
    storage: WorkspaceStorage, record: WorkspaceRecord, outputs: Sequence[str] | None, *, any_line: bool = False
) -> int:
    if outputs is None:
        return record.version
    versions = await storage.read_versions(record.key)
    if any_line:
        return find_version(versions, outputs)
    line = trace_line(versions, record.version)
    number = find_version(line, outputs)
    # The version itself may be one that went back to it.
    return record.version if line and number == line[-1].number else number
