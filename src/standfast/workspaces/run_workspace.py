"""The workspace of a run that is not durable: which version its state refers to, and how a resumed run finds it."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from standfast.base.errors import Unsupported
from standfast.store.backend import Backend
from standfast.store.records import WorkspaceRecord
from standfast.workers.errors import WorkspaceRefused
from standfast.workspaces.bundles import BundleSeal, WorkspaceBundle, export_version, import_bundle, is_sealed
from standfast.workspaces.storage import WorkspaceStorage, describe_location
from standfast.workspaces.versions import (
    Cell,
    WorkspaceRef,
    WorkspaceVersion,
    find_version,
    name_run_workspace,
    parse_session_id,
)

if TYPE_CHECKING:
    from standfast.workspaces.executor import WorkspaceExecutor


class RunWorkspace:
    """What a run knows about its workspace.

    ``reference`` is that of the state that the run continues from. Its first Python call brings the workspace there:
    from the store, or from the bundle that was embedded in the state. Workspaces of sessions and of conversations that
    the provider keeps belong to all their runs; there the latest version is used.
    """

    def __init__(
        self,
        run_id: str,
        reference: WorkspaceRef | None = None,
        *,
        embedded: bytes | None = None,
        seal: BundleSeal | None = None,
        storage: WorkspaceStorage | None = None,
    ) -> None:
        self.run_id, self.reference, self.embedded, self.seal = run_id, reference, embedded, seal
        self.problem: str | None = None
        self.is_confidential = False
        """Whether the session of the run is encrypted, so that nothing of it may be stored in clear."""
        self._bundle: WorkspaceBundle | None = None
        self._storage = storage
        self._save: Callable[[], Awaitable[None]] | None = None
        self._is_due = reference is not None
        self._latest = reference
        self._made: list[WorkspaceVersion] = []
        self._own_backend: Backend | None = None
        self._is_unkept = False

    def unpack(self) -> None:
        """Check the embedded bundle; raise :class:`WorkspaceRefused` if it is not that of this run and reference.

        One that is encrypted stays as it is if there is no key.
        """
        if self.embedded is None or (is_sealed(self.embedded) and self.seal is None):
            return
        bundle = WorkspaceBundle.decode(self.embedded, self.run_id, self.seal)
        wanted = (self.reference.workspace_id, self.reference.version) if self.reference else None
        if (bundle.workspace_id, bundle.version) != wanted:
            raise WorkspaceRefused("other-owner", "the embedded workspace is not the one that the run refers to")
        self._bundle = bundle

    def continue_from(self, reference: WorkspaceRef | None) -> "RunWorkspace":
        """Return the workspace for a run that continues from a state with this reference."""
        same = reference == self.reference
        other = RunWorkspace(self.run_id, reference, embedded=self.embedded if same else None, seal=self.seal)
        other._bundle = self._bundle if same else None
        other._storage, other._save, other._own_backend = self._storage, self._save, self._own_backend
        other._is_unkept, other.is_confidential = self._is_unkept, self.is_confidential
        return other

    # --- state --------------------------------------------------------------------------------------

    def find_reference(self, outputs: Iterable[str]) -> WorkspaceRef | None:
        """Return the reference after these calls: the version that the latest of them made, or the one at the start."""
        number = find_version(self._made, outputs)
        if not number or self._latest is None:
            return self.reference
        saved = [one.checkpoint_id for one in self._made if one.number <= number and one.checkpoint_id is not None]
        before = self.reference.checkpoint if self.reference else None
        return replace(self._latest, version=number, checkpoint=saved[-1] if saved else before)

    def get_embedded(self, reference: WorkspaceRef | None) -> bytes | None:
        """Return the bundle that came with this reference: a state that is saved again keeps it."""
        return self.embedded if reference == self.reference else None

    async def embed(self, reference: WorkspaceRef | None, *, max_bytes: int) -> bytes | None:
        """Return the version that a state refers to as a bundle; ``None`` if its run has used no Python."""
        if (embedded := self.get_embedded(reference)) is not None:
            return embedded
        if reference is None or self._storage is None:
            if self._is_unkept or reference is not None:
                raise Unsupported(
                    "the variables and files of this run cannot be embedded: "
                    + (
                        self.describe_missing(reference)
                        if reference is not None
                        else "they are in no store. Pass store= to PythonSessions, for example that of"
                        " open_store('memory://')"
                    )
                )
            return None
        if self._save is not None:
            await self._save()
        bundle = await export_version(
            self._storage, reference.key, reference.version, run_id=self.run_id, max_bytes=max_bytes
        )
        return bundle.encode(self.seal)

    async def export(self, stores: Sequence[Any], *, own: Collection[str], max_bytes: int) -> WorkspaceBundle:
        """Return the version that the run refers to: what is embedded, or from the store that has it.

        ``own`` are the keys that the workspace of this run can have: a saved state may refer to any other. Raises
        :class:`WorkspaceRefused` if it does, or if it is encrypted and there is no key, and :class:`Unsupported` if no
        store has it.
        """
        reference = self.reference
        if self._bundle is not None:
            return self._bundle
        if self.embedded is not None or reference is None:
            raise WorkspaceRefused("locked", "the embedded workspace is encrypted: load it with encryption_key=")
        if reference.key not in own:
            raise WorkspaceRefused("other-owner", f"{reference.key!r} is the workspace of another conversation")
        if self._save is not None:
            await self._save()
        known = [self._storage] if self._storage is not None else []
        for storage in [*known, *(WorkspaceStorage(store.backend) for store in stores)]:
            record = await storage.get(reference.key)
            if record is not None and is_reached(record, reference):
                return await export_version(
                    storage, reference.key, reference.version, run_id=self.run_id, max_bytes=max_bytes
                )
        raise Unsupported(self.describe_missing(reference))

    async def find_problem(self, stores: Sequence[Any]) -> str | None:
        """Return why the variables and files of the run are not in these stores, and what to do."""
        reference = self.reference
        if reference is None or self._bundle is not None:
            return None
        if self.embedded is not None:
            return (
                "the variables and files of this run are embedded and encrypted: pass encryption_key= to from_json or"
                " from_string. Otherwise its Python starts empty, and the model gets a note"
            )
        for backend in {id(store.backend): store.backend for store in stores if hasattr(store, "backend")}.values():
            record = await WorkspaceStorage(backend).get(reference.key)
            if record is not None and is_reached(record, reference):
                return None
        return self.describe_missing(reference)

    def describe_missing(self, reference: WorkspaceRef) -> str:
        return (
            f"the variables and files of this run are version {reference.version} of the workspace {reference.key!r} in"
            f" the store {reference.store!r}, which is not here: give its Python tool PythonSessions(pool, store=) with"
            " that store, or save the run with embed_workspace=True where that store is"
        )

    # --- the executor's side ------------------------------------------------------------------------

    @property
    def has_own_store(self) -> bool:
        """Whether calls of a tool without a store use the store of this object, in memory.

        What was encrypted is kept nowhere else.
        """
        return self._own_backend is not None or self._bundle is not None

    @property
    def is_sealed(self) -> bool:
        return self.seal is not None

    def open_workspaces(self, **options: Any) -> "WorkspaceExecutor":
        """Return the executor of this run's own store."""
        from standfast.store.memory import MemoryBackend
        from standfast.workspaces.executor import WorkspaceExecutor

        if self._own_backend is None:
            self._own_backend = MemoryBackend()
        return WorkspaceExecutor(self._own_backend, **{**options, "durability": "on_pause"})

    def name_workspace(self, conversation: str) -> str:
        return f"conversation:{conversation}"

    def note_unkept(self) -> None:
        """Remember that the run has used Python whose variables and files are in no store."""
        self._is_unkept = True

    async def prepare(
        self, storage: WorkspaceStorage, key: str, record: WorkspaceRecord | None
    ) -> tuple[WorkspaceRecord | None, str]:
        """Bring the workspace ``key`` to where the run was saved; return it, and a note if that is not possible.

        The caller owns the workspace. Later calls of the run find it as the run left it.
        """
        wanted = self.reference
        if not self._is_due or wanted is None:
            return record, ""
        is_own = key == self.name_workspace(self.run_id)
        note = ""
        if record is not None and is_reached(record, wanted):
            if is_own and await _has_later_versions(storage, key, record, wanted):
                await storage.backend.commit(storage.build_append_op(key, record, Cell(wanted.version)))
        elif self._bundle is not None:
            await self.check_owner(storage, key, self._bundle, is_taken=record is not None and not is_own)
            await import_bundle(storage, key, record, self._bundle)
        elif not (is_own and await self._copy_durable(storage, key, record, wanted)):
            note = f"[{self.describe_missing(wanted)}]"
            if is_own and record is not None:
                await storage.backend.commit(storage.build_append_op(key, record, Cell(0)))
        self._is_due = False
        return await storage.get(key), note

    async def _copy_durable(
        self, storage: WorkspaceStorage, key: str, record: WorkspaceRecord | None, wanted: WorkspaceRef
    ) -> bool:
        """Copy the workspace of a durable run whose state is continued outside of a runtime."""
        if wanted.key != name_run_workspace(self.run_id):
            return False
        source = await storage.get(wanted.key)
        if source is None or not is_reached(source, wanted):
            return False
        try:
            await storage.backend.commit(*await storage.build_copy_ops(wanted.key, wanted.version, key, record))
        except WorkspaceRefused:  # it is encrypted, and this store has no key
            return False
        return True

    async def check_owner(
        self, storage: WorkspaceStorage, key: str, bundle: WorkspaceBundle, *, is_taken: bool
    ) -> None:
        if is_taken:
            raise WorkspaceRefused(
                "other-owner", f"{key!r} has variables and files of its own in {describe_location(storage.backend)}"
            )
        session_id = parse_session_id(key)
        session = None if session_id is None else await storage.backend.get_session(session_id)
        if session is not None and session.owner != bundle.owner:
            raise WorkspaceRefused(
                "other-owner", f"session {session_id!r} has another owner than the embedded workspace"
            )

    def note_version(
        self, storage: WorkspaceStorage, key: str, workspace_id: str, number: int, cell: Cell, save: Any
    ) -> None:
        """Remember the version that a call of the run has made; ``save`` writes its checkpoint."""
        self._is_due, self._storage, self._save = False, storage, save
        self._latest = WorkspaceRef(key, workspace_id, number, store=describe_location(storage.backend))
        self._made.append(WorkspaceVersion(number, cell, 0.0))

    def note_checkpoint(self, number: int, checkpoint_id: str) -> None:
        self._made = [replace(one, checkpoint_id=checkpoint_id) if one.number == number else one for one in self._made]


def is_reached(record: WorkspaceRecord, reference: WorkspaceRef) -> bool:
    """Return whether a stored workspace is the one that is referred to and has that version."""
    return record.workspace_id == reference.workspace_id and record.version >= reference.version


async def _has_later_versions(
    storage: WorkspaceStorage, key: str, record: WorkspaceRecord, reference: WorkspaceRef
) -> bool:
    """Return whether calls were made after the version that is referred to. What the program wrote since is kept."""
    if record.version == reference.version:
        return False
    line = await storage.read_line(key, record.version)
    since = [one for one in line if one.number > reference.version]
    return all(one.number != reference.version for one in line) or any(one.cell.call for one in since)
