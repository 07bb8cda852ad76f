"""Workspaces in a backend: versions, checkpoints and chunks. Those of encrypted sessions are refused in clear."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

import msgspec

from standfast.base.errors import NotFound, Unsupported
from standfast.base.ids import new_id
from standfast.store.backend import Backend
from standfast.store.memory import MemoryBackend
from standfast.store.operations import AppendVersions, Op, OpResult, PutBlob, SaveCheckpoint
from standfast.store.records import CheckpointRecord, WorkspaceRecord
from standfast.workers.errors import WorkspaceRefused
from standfast.workers.wire.manifests import InvalidManifest, WorkspaceManifest
from standfast.workspaces.versions import (
    Cell,
    WorkspaceVersion,
    decode_version,
    encode_cell,
    parse_session_id,
    shift_cells,
    trace_line,
)

if TYPE_CHECKING:
    from standfast.workers.captures import Capture

_BATCH_BYTES = 4 << 20
_REMEDIES = (
    "use a Runtime with encryption_key=, which encrypts them, or PythonSessions with the store of"
    " open_store('memory://') or with durability='off', which write them nowhere"
)


class SavedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint that is complete except for the commit of ``op``."""

    op: SaveCheckpoint
    manifest: WorkspaceManifest

    @property
    def checkpoint_id(self) -> str:
        return self.op.checkpoint_id


class WorkspaceStorage:
    """The workspaces of one backend, by their keys."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    async def get(self, key: str) -> WorkspaceRecord | None:
        return await self.backend.get_workspace(key)

    async def find_place(self, key: str) -> tuple[int, int, int] | None:
        """Return where the session is to which a workspace belongs, see :class:`Cell`."""
        session_id = parse_session_id(key)
        if session_id is None:
            return None
        record = await self.backend.get_session(session_id)
        return (record.tape, record.generation, record.next_seq) if record is not None else (0, 0, 0)

    async def read_versions(self, key: str) -> list[WorkspaceVersion]:
        return [decode_version(record) for record in await self.backend.read_versions(key)]

    async def read_latest_line(self, key: str, record: WorkspaceRecord | None) -> list[WorkspaceVersion]:
        """Return the versions that lead to the latest one; :class:`WorkspaceRefused` if the record was put back."""
        found, latest = await self.read_versions(key), record.version if record else 0
        if found and found[-1].number > latest:
            present = await self.get(key)  # a change of the conversation may just have added a version
            if present is None or present.version < found[-1].number:
                detail = f"{key!r} was put back to version {latest}, although it has version {found[-1].number}"
                raise WorkspaceRefused("damaged", detail)
        return trace_line(found, latest)

    async def read_line(self, key: str, number: int) -> list[WorkspaceVersion]:
        """Return the versions that lead to this one, first to last."""
        records = await self.backend.read_versions(key, upto=number)
        return trace_line([decode_version(record) for record in records], number)

    def build_append_op(self, key: str, record: WorkspaceRecord | None, *cells: Cell) -> AppendVersions:
        """Return the operation that adds versions to the workspace as it was read; ``None`` creates it."""
        return AppendVersions(
            key=key,
            workspace_id=record.workspace_id if record else new_id("workspace"),
            expected=record.version if record else 0,
            versions=tuple(map(encode_cell, cells)),
        )

    async def write_capture(
        self,
        capture: "Capture",
        *,
        key: str,
        workspace_id: str,
        version: int,
        written: dict[bytes, bytes] | None = None,
    ) -> SavedCheckpoint:
        """Store the chunks of a capture; return the checkpoint, which exists when its operation is committed.

        The chunks are added to ``written`` as they are stored.
        """
        await self.write_chunks(capture if written is None else _note_chunks(capture, written))
        manifest = capture.manifest
        return SavedCheckpoint(build_checkpoint_op(manifest, key, workspace_id, version), manifest)

    def open_large_writes(self) -> AbstractAsyncContextManager[None]:
        """Return the context for writing large content; only SQLite has a special one."""
        return getattr(self.backend, "large_writes", None) or nullcontext()

    async def write_chunks(self, chunks: AsyncIterable[tuple[bytes, bytes]]) -> None:
        """Store chunks, in small commits. While one is written, the chunks of the next one are taken."""
        writing: asyncio.Future[list[OpResult]] | None = None
        batch: list[Op] = []
        size = 0
        try:
            async for digest, data in chunks:
                batch.append(PutBlob(digest=digest.hex(), size=len(data), data=data))
                size += len(data)
                if size >= _BATCH_BYTES:
                    if writing is not None:
                        await writing
                    writing = asyncio.ensure_future(self.backend.commit(*batch))
                    batch, size = [], 0
        finally:
            if writing is not None:
                await writing
        if batch:
            await self.backend.commit(*batch)

    async def write_stored_chunks(self, chunks: Mapping[bytes, bytes]) -> None:
        """Store chunks by their digests, in small commits."""

        async def iterate() -> AsyncIterator[tuple[bytes, bytes]]:
            for digest, data in chunks.items():
                yield digest, data

        await self.write_chunks(iterate())

    async def get_manifest(self, key: str, version: int) -> tuple[CheckpointRecord, WorkspaceManifest]:
        """Return the checkpoint of a version; :class:`WorkspaceRefused` if it cannot be read."""
        record = await self.backend.get_checkpoint(key, version)
        if record is None:
            raise NotFound("checkpoint", f"{key} {version}")
        try:
            manifest = WorkspaceManifest.decode(record.data)
        except InvalidManifest as problem:
            raise WorkspaceRefused(problem.kind, str(problem)) from problem
        if manifest.place not in (None, (key, version)):
            raise WorkspaceRefused("other-owner", f"the checkpoint of version {version} was made for another one")
        return record, manifest

    async def fetch(self, digest: bytes) -> bytes:
        """Return a chunk as it is stored; :class:`WorkspaceRefused` if it is missing."""
        found = await self.backend.find_blobs([digest.hex()])
        data = await self.backend.read_blob(found[0]) if found else None
        if data is None:
            raise WorkspaceRefused("missing", f"the chunk {digest.hex()[:16]} is not stored")
        return data

    async def build_copy_ops(
        self,
        source: str,
        number: int,
        target: str,
        record: WorkspaceRecord | None = None,
        *,
        called: Mapping[int, tuple[int, int, int]] | None = None,
    ) -> list[Op]:
        """Return the operations that make the workspace ``target`` as ``source`` is at a version.

        It is created, and the versions keep their numbers, or they follow those of the workspace that was read as
        ``record``. Of their checkpoints only the latest is copied; it shares all its chunks. ``called`` has the places
        of calls whose outputs are stored in another session than that in which they were made.
        """
        if not number:
            return []
        versions = [one for one in await self.read_versions(source) if one.number <= number]
        start = record.version if record else 0
        cells = [
            msgspec.structs.replace(one.cell, called=(called or {}).get(one.number, one.cell.called))
            for one in versions
        ]
        append = self.build_append_op(target, record, *shift_cells(cells, start))
        for saved in reversed([one for one in trace_line(versions, number) if one.checkpoint_id is not None]):
            with suppress(NotFound, WorkspaceRefused):  # the next best one, and more cells are run again
                _, manifest = await self.get_manifest(source, saved.number)
                return [append, build_checkpoint_op(manifest, target, append.workspace_id, start + saved.number)]
        return [append]


async def _note_chunks(
    chunks: AsyncIterable[tuple[bytes, bytes]], written: dict[bytes, bytes]
) -> AsyncIterator[tuple[bytes, bytes]]:
    async for digest, data in chunks:
        written[digest] = data
        yield digest, data


def build_checkpoint_op(manifest: WorkspaceManifest, key: str, workspace_id: str, version: int) -> SaveCheckpoint:
    return SaveCheckpoint(
        key=key,
        workspace_id=workspace_id,
        version=version,
        checkpoint_id=new_id("checkpoint"),
        data=msgspec.structs.replace(manifest, place=(key, version)).encode(),
        blobs=tuple(sorted(digest.hex() for digest in manifest.digests)),
        size=manifest.size,
    )


def describe_location(backend: Backend) -> str:
    """Return where a store is, for people: without the names of its tables, and never with a password."""
    return backend.location.partition(" TableNames(")[0]


async def refuse_encrypted(backend: Backend, key: str, *, is_encrypted: bool) -> None:
    """Refuse to store the workspace of a session in this backend in clear, if the session is encrypted."""
    session_id = parse_session_id(key)
    if is_encrypted or session_id is None:
        return
    record = await backend.get_session(session_id)
    if record is not None and record.seal is not None:
        raise make_clear_error(f"session {session_id!r}")


def refuse_clear(backend: Backend, *, is_encrypted: bool) -> None:
    """Refuse to store the workspace of a run in clear; its session is encrypted, in whichever store."""
    if not is_encrypted and not isinstance(backend, MemoryBackend):
        raise make_clear_error("the session of this run")


def make_clear_error(session: str) -> Unsupported:
    return Unsupported(f"{session} is encrypted, and its variables and files would be stored unencrypted: {_REMEDIES}")
