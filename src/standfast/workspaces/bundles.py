"""A version of a workspace as bytes: its cells, its latest checkpoint, and the chunks of that.

A bundle needs no store, so that a saved run can carry its variables and files. It is checked as a whole before anything
of it is used: the header, the digest of everything, the run that it was made for, and that it has every chunk that its
manifest names. A manifest that names other chunks could read those of another conversation from a shared store.
"""

import hashlib
from typing import Protocol, Self

import msgspec

from standfast.base.errors import Unsupported
from standfast.store.operations import Op
from standfast.store.records import WorkspaceRecord
from standfast.workers.chunks import decode_chunk
from standfast.workers.errors import WorkspaceRefused
from standfast.workers.wire.manifests import InvalidManifest, WorkspaceManifest
from standfast.workspaces.storage import WorkspaceStorage, build_checkpoint_op, describe_location
from standfast.workspaces.versions import Cell, encode_cell, parse_session_id, shift_cells, trace_line

_MAGIC = b"standfast-bundle"
_FORMAT = 1
_CLEAR, _SEALED = 0, 1
_DIGEST_SIZE = 32
_BODY_START = len(_MAGIC) + 2


class BundleSeal(Protocol):
    """Encrypts and authenticates a bundle, with the keys of an encrypted session."""

    def encrypt(self, data: bytes, place: bytes) -> bytes: ...

    def decrypt(self, data: bytes, place: bytes) -> bytes:
        """Return the plaintext, or raise WrongKey, or ValueError if it was altered or belongs to another place."""
        ...


class WorkspaceBundle(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The workspace of the run ``run_id`` at ``version``; ``owner`` is the owner of the session, if it has one.

    ``cells`` made the versions from 1 on. ``manifest`` is that of the version ``checkpoint``, or 0 without one, and
    ``chunks`` has its content by digest, as it is stored.
    """

    run_id: str
    workspace_id: str
    version: int
    owner: str | None = None
    cells: tuple[bytes, ...] = ()
    checkpoint: int = 0
    manifest: bytes = b""
    chunks: dict[bytes, bytes] = {}

    def encode(self, seal: BundleSeal | None = None) -> bytes:
        """Return the bundle as bytes, encrypted if there is a seal."""
        body = msgspec.msgpack.encode(self)
        header = _MAGIC + bytes([_FORMAT, _CLEAR if seal is None else _SEALED])
        if seal is not None:
            return header + seal.encrypt(body, header + self.run_id.encode())
        return header + hashlib.sha256(body).digest() + body

    @classmethod
    def decode(cls, data: bytes, run_id: str, seal: BundleSeal | None = None) -> Self:
        """Return the bundle of this run; :class:`WorkspaceRefused` if the bytes are not exactly that."""
        check_header(data)
        body = _open_body(data, run_id, seal)
        try:
            bundle = msgspec.msgpack.decode(body, type=cls)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise WorkspaceRefused("damaged", f"the embedded workspace cannot be read: {problem}") from None
        if bundle.run_id != run_id:
            raise WorkspaceRefused(
                "other-owner", f"the embedded workspace belongs to the run {bundle.run_id!r}, not to {run_id!r}"
            )
        bundle._check()
        return bundle

    def decode_cells(self) -> list[Cell]:
        try:
            return [msgspec.json.decode(data, type=Cell) for data in self.cells]
        except msgspec.MsgspecError as problem:
            raise WorkspaceRefused("damaged", f"the embedded workspace has an unreadable cell: {problem}") from None

    def decode_manifest(self) -> WorkspaceManifest | None:
        if not self.checkpoint:
            return None
        try:
            return WorkspaceManifest.decode(self.manifest)
        except InvalidManifest as problem:
            raise WorkspaceRefused(problem.kind, str(problem)) from problem

    def _check(self) -> None:
        cells, manifest = self.decode_cells(), self.decode_manifest()
        ordered = all(0 <= cell.parent < number for number, cell in enumerate(cells, start=1))
        if not ordered or len(cells) != self.version or not 0 <= self.checkpoint <= self.version:
            raise WorkspaceRefused("damaged", "the versions of the embedded workspace do not fit together")
        if set(self.chunks) != (manifest.digests if manifest else set()):
            raise WorkspaceRefused("damaged", "the embedded workspace lacks some of its content, or has other content")
        for digest, stored in self.chunks.items():
            decode_chunk(digest, stored)


def check_header(data: bytes) -> None:
    """Raise :class:`WorkspaceRefused` unless the bytes begin like a bundle that this version can read."""
    if not data.startswith(_MAGIC) or len(data) <= _BODY_START:
        raise WorkspaceRefused("foreign", "what is embedded in the saved run is not a workspace")
    found = data[len(_MAGIC)]
    if found > _FORMAT:
        raise WorkspaceRefused(
            "too-new", f"the embedded workspace has format {found}; this version of standfast reads up to {_FORMAT}"
        )


def is_sealed(data: bytes) -> bool:
    """Return whether a bundle needs a key."""
    return data[len(_MAGIC) + 1 : _BODY_START] != bytes([_CLEAR])


def _open_body(data: bytes, run_id: str, seal: BundleSeal | None) -> bytes:
    header, rest = data[:_BODY_START], data[_BODY_START:]
    if not is_sealed(data):
        if seal is not None:
            raise WorkspaceRefused("damaged", "the embedded workspace is not encrypted, although a key was passed")
        if hashlib.sha256(rest[_DIGEST_SIZE:]).digest() != rest[:_DIGEST_SIZE]:
            raise WorkspaceRefused("damaged", "the embedded workspace is cut or was altered: its digest does not match")
        return rest[_DIGEST_SIZE:]
    if seal is None:
        raise WorkspaceRefused("locked", "the embedded workspace is encrypted: pass encryption_key=")
    try:
        return seal.decrypt(rest, header + run_id.encode())
    except ValueError as problem:
        raise WorkspaceRefused("damaged", f"the embedded workspace {problem}") from None


async def export_version(
    storage: WorkspaceStorage, key: str, number: int, *, run_id: str, max_bytes: int
) -> WorkspaceBundle:
    """Return a version of a stored workspace as a bundle of at most ``max_bytes`` of content."""
    record = await storage.get(key)
    if record is None or record.version < number:
        raise WorkspaceRefused("missing", f"the workspace {key!r} is no longer in {describe_location(storage.backend)}")
    session_id = parse_session_id(key)
    session = None if session_id is None else await storage.backend.get_session(session_id)
    versions = [one for one in await storage.read_versions(key) if one.number <= number]
    saved = next((one.number for one in reversed(trace_line(versions, number)) if one.checkpoint_id is not None), 0)
    manifest, chunks, size = None, dict[bytes, bytes](), 0
    if saved:
        _, manifest = await storage.get_manifest(key, saved)
        for digest in sorted(manifest.digests):
            chunks[digest] = await storage.fetch(digest)
            size += len(chunks[digest])
            if size > max_bytes:
                raise Unsupported(
                    f"the workspace {key!r} has more than {max_bytes >> 20} MB: pass a larger max_workspace_mb=, or"
                    " save the run without its workspace, which stays in the store"
                )
    return WorkspaceBundle(
        run_id=run_id,
        workspace_id=record.workspace_id,
        version=number,
        owner=session.owner if session else None,
        cells=tuple(encode_cell(one.cell) for one in versions),
        checkpoint=saved,
        manifest=manifest.encode() if manifest else b"",
        chunks=chunks,
    )


async def import_bundle(
    storage: WorkspaceStorage, key: str, record: WorkspaceRecord | None, bundle: WorkspaceBundle
) -> None:
    """Make a bundle the latest version of the workspace ``key``, which was read as ``record``, or create it."""
    await storage.backend.commit(*await build_import_ops(storage, key, record, bundle))


async def build_import_ops(
    storage: WorkspaceStorage, key: str, record: WorkspaceRecord | None, bundle: WorkspaceBundle
) -> list[Op]:
    """Store the chunks of a bundle, and return the operations that make it the latest version of a workspace."""
    start = record.version if record else 0
    append = storage.build_append_op(key, record, *shift_cells(bundle.decode_cells(), start))
    ops: list[Op] = [append]
    manifest = bundle.decode_manifest()
    if manifest is not None:
        await storage.write_stored_chunks(bundle.chunks)
        ops.append(build_checkpoint_op(manifest, key, append.workspace_id, start + bundle.checkpoint))
    return ops
