"""The Python of a session for people: run cells in its workspace beside its runs, change files, go back."""

import posixpath
from collections.abc import Callable, Mapping

from standfast.base.errors import InvalidInput, NotFound
from standfast.base.ids import new_id
from standfast.base.validation import is_integer
from standfast.store.backend import Backend
from standfast.workers.cell_executors import CellExecutor, CellObserver
from standfast.workers.pool import SessionPool
from standfast.workers.python_sessions import PythonCallResult, PythonSessions
from standfast.workers.wire.manifests import find_path_problem
from standfast.workspaces.ownership import acquire_workspace
from standfast.workspaces.storage import WorkspaceStorage
from standfast.workspaces.versions import Cell, name_session_workspace


class SessionWorkspaces:
    """Where the workspace of a session is kept."""

    def __init__(self, open_workspaces: Callable[..., CellExecutor], session_id: str) -> None:
        self.open_workspaces, self._key = open_workspaces, name_session_workspace(session_id)

    def name_workspace(self, conversation: str) -> str:
        return self._key


class SessionPython:
    """The Python of one session. Created by :meth:`Runtime.python`.

    Its cells, those of the runs of the session, and those of other processes run one after the other, in the same
    variables and files. Each adds a version to the workspace.
    """

    def __init__(
        self,
        backend: Backend,
        open_workspaces: Callable[..., CellExecutor],
        session_id: str,
        conversation: str,
        pool: SessionPool | PythonSessions,
    ) -> None:
        self.session_id = session_id
        self._sessions = pool if isinstance(pool, PythonSessions) else PythonSessions.for_pool(pool)
        self._source = SessionWorkspaces(open_workspaces, session_id)
        self._storage = WorkspaceStorage(backend)
        self._key = name_session_workspace(session_id)
        self._conversation = conversation

    async def run(
        self, code: str, *, timeout: float | None = None, observer: CellObserver | None = None
    ) -> PythonCallResult:
        """Run a cell. ``observer`` gets its messages while it runs, and may answer what it asks for."""
        return await self._sessions.run(
            code, key=self._conversation, timeout=timeout, store=self._source, observer=observer
        )

    async def write_files(self, files: Mapping[str, bytes]) -> None:
        """Create or replace files, which make one version together. A path that no version keeps is refused."""
        for path in files:
            if (problem := find_path_problem(posixpath.normpath(path))) is not None:
                raise InvalidInput(f"the path {path!r} {problem}")
        async with self._sessions.session(self._conversation, store=self._source) as session:
            for path, content in files.items():
                await session.files.write(path, content)

    async def remove_file(self, path: str) -> None:
        """Remove a file, or raise :class:`NotFound`."""
        async with self._sessions.session(self._conversation, store=self._source) as session:
            await session.files.remove(path)

    async def restart(self) -> None:
        """Replace the worker after the cell under way. The next cell finds variables and files as they were saved."""
        await self._sessions.restart(self._conversation, store=self._source)

    async def restore(self, version: int) -> int:
        """Go back to an earlier version; 0 is an empty workspace. That makes a new version, whose number is returned.

        Nothing is lost: the versions in between can be restored, too.
        """
        storage, backend = self._storage, self._storage.backend
        owned = await acquire_workspace(
            backend, self._key, owner=new_id("restore"), wait=self._sessions.timeout, call=None
        )
        async with owned.hold():
            record = await storage.get(self._key)
            if record is None:
                raise NotFound("workspace", self._key)
            if not is_integer(version) or not 0 <= version <= record.version:
                raise InvalidInput(f"unknown version {version!r}: the workspace has the versions 0 to {record.version}")
            cell = Cell(version, place=await storage.find_place(self._key), went_back=True)
            op = storage.build_append_op(self._key, record, cell)
            await backend.commit(op, owned.build_fence_op(), owned.build_release_op())
        return record.version + 1
