"""The operations by which the variables and files of a session follow its items, for the commits that change these."""

from typing import TYPE_CHECKING

from standfast.store.operations import Op
from standfast.store.records import Generation
from standfast.workspaces.branches import build_fork_ops, build_restore_ops, build_rewind_ops, find_workspace
from standfast.workspaces.versions import list_output_ids, list_workspaces, name_session_workspace

if TYPE_CHECKING:
    from standfast.history.stored_session import StoredSession


async def find_session_workspaces(session: "StoredSession") -> list[str]:
    """Return the keys of the workspaces that the session has."""
    keys = list_workspaces(name_session_workspace(session.session_id))
    return [key for key in keys if await find_workspace(session.backend, key) is not None]


async def rewind_workspaces(session: "StoredSession", to: int) -> list[Op]:
    """Return the operations that rewind the workspaces of a session to its first ``to`` items."""
    keys = await find_session_workspaces(session)
    if not keys:
        return []
    point = await session.read_point(to)
    return [op for key in keys for op in await build_rewind_ops(session.backend, key, point)]


async def restore_workspaces(session: "StoredSession", generation: Generation, tape: int) -> list[Op]:
    """Return the operations for a session that shows an earlier generation again, followed by the items added since."""
    keys = await find_session_workspaces(session)
    if not keys:
        return []
    before = await session.read_point(generation.length, generation.number)
    shown, _ = session.decode_page(await session.read_page())
    added = (entry for entry in shown if entry.row.tape == tape and entry.row.seq >= generation.resumes_at)
    since = list_output_ids(entry.item for entry in added)
    return [op for key in keys for op in await build_restore_ops(session.backend, key, before, since)]


async def fork_workspaces(session: "StoredSession", child_id: str, place: tuple[int, int | None] | None) -> list[Op]:
    """Return the operations that create the workspaces of a fork at a place: (items, generation), or the end."""
    keys = await find_session_workspaces(session)
    if not keys:
        return []
    targets = dict(
        zip(
            list_workspaces(name_session_workspace(session.session_id)),
            list_workspaces(name_session_workspace(child_id)),
            strict=True,
        )
    )
    point = None if place is None else await session.read_point(*place)
    return [op for key in keys for op in await build_fork_ops(session.backend, key, targets[key], point)]
