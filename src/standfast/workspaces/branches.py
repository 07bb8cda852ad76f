"""Workspaces that follow their conversations: when a session or run is forked, rewound or deleted."""

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from standfast.base.errors import Unsupported
from standfast.store.backend import Backend
from standfast.store.operations import DeleteWorkspace, Op
from standfast.store.records import WorkspaceRecord
from standfast.workers.errors import WorkspaceRefused
from standfast.workspaces.branch_points import (
    RunPoint,
    SessionPoint,
    choose_at_point,
    choose_before_run,
    find_pending,
)
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.versions import (
    Cell,
    WorkspaceVersion,
    choose_version,
    name_nested_workspace,
    select_versions,
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


async def build_fork_ops(backend: Backend, source: str, target: str, point: RunPoint | SessionPoint | None) -> list[Op]:
    """Return the operations that create the workspace of a fork, as that of its origin was at a point.

    ``None`` is the present.
    """
    record = await find_workspace(backend, source)
    if record is None:
        return []
    storage = WorkspaceStorage(backend)
    try:
        number, called = record.version, dict[int, tuple[int, int, int]]()
        if point is not None:
            versions = await storage.read_versions(source)
            number = choose_at_point(versions, number, point)
            if isinstance(point, RunPoint) and point.stored_at is not None:
                called = dict.fromkeys(find_pending(trace_line(versions, number), point), point.stored_at)
        return await storage.build_copy_ops(source, number, target, called=called)
    except WorkspaceRefused:
        raise make_unreadable_error(source, "forked") from None


async def build_rewind_ops(backend: Backend, key: str, point: SessionPoint | str) -> list[Op]:
    """Return the operations that rewind a workspace as its next version: to a point, or to before a run of this id."""
    record = await find_workspace(backend, key)
    if record is None:
        return []
    storage = WorkspaceStorage(backend)
    try:
        versions = await storage.read_versions(key)
        line = trace_line(versions, record.version)
        if isinstance(point, str):
            number = choose_before_run(line, point)
        else:
            number = choose_at_point(versions, record.version, point)
    except WorkspaceRefused:
        raise make_unreadable_error(key, "rewound") from None
    if number == (line[-1].number if line else 0):  # the version itself may be one that went back to it
        return []
    return [storage.build_append_op(key, record, Cell(number, place=await storage.find_place(key)))]


async def build_restore_ops(backend: Backend, key: str, before: SessionPoint, since: Sequence[str]) -> list[Op]:
    """Return the operations for a conversation that was rewound, then got other calls, and has all of them now.

    ``before`` is the end of the part that was rewound, and ``since`` are the ids of the calls made after that. The
    workspace becomes that of the former part, and the cells of the latter follow it, to be run again, with those that
    the program has run meanwhile.
    """
    record = await find_workspace(backend, key)
    if record is None:
        return []
    storage = WorkspaceStorage(backend)
    try:
        versions = await storage.read_versions(key)
    except WorkspaceRefused:
        raise make_unreadable_error(key, "restored") from None
    base = choose_at_point(versions, record.version, before)
    earlier = {one.number for one in trace_line(versions, base)}
    line = [one for one in trace_line(versions, record.version) if one.number not in earlier]
    again = list_later_cells(line, before, since)
    wanted = [*list_calls(versions, base), *map(identify_call, again)]
    best = choose_version(versions, [*before.outputs, *since])
    whole = next((number for number in (record.version, best) if list_calls(versions, number) == wanted), None)
    place = await storage.find_place(key)
    # Cells without code are those of a sandbox, whose files nothing can make again.
    if whole is not None or not again or not all(cell.code for cell in again):
        number = whole if whole is not None else best if again else base
        return [] if number == record.version else [storage.build_append_op(key, record, Cell(number, place=place))]
    numbers = [base, *range(record.version + 1, record.version + len(again))]
    cells = [
        replace(cell, parent=parent, place=place, called=cell.called or cell.place)
        for cell, parent in zip(again, numbers, strict=True)
    ]
    return [storage.build_append_op(key, record, *cells)]


def list_later_cells(line: Sequence[WorkspaceVersion], before: SessionPoint, since: Sequence[str]) -> list[Cell]:
    """Return the cells of these calls, and all that were run after the generation of the point."""
    calls = {one.number for one in select_versions(line[::-1], since)}
    found = []
    for one in line:
        tape, generation, _ = one.cell.called or one.cell.place or (0, 0, 0)
        is_later = bool(one.cell.code) and tape == before.tape and generation > before.generation
        if one.number in calls or is_later:
            found.append(one.cell)
    return found


def identify_call(cell: Cell) -> tuple[str, str, str | None]:
    """Return what tells a call from others with the same id."""
    return cell.call, cell.run_id, cell.code


def list_calls(versions: Sequence[WorkspaceVersion], number: int) -> list[tuple[str, str, str | None]]:
    """Return the cells that made the versions of a line."""
    return [identify_call(one.cell) for one in trace_line(versions, number) if one.cell.code is not None]


def make_unreadable_error(key: str, action: str) -> Unsupported:
    """Return the error for a workspace that a session without its key, or a damaged one, cannot take along."""
    return Unsupported(
        f"the workspace {key!r} cannot be {action} together with its conversation: it is encrypted or damaged. Nothing"
        " was changed. Use the session of a runtime with the key: Runtime.open(url, encryption_key=...).session(id)"
    )
